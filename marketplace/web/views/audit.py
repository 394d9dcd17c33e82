"""Who did what in an organisation: the audit log, with filters, and as CSV."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.dateparse import parse_date
from django.views.decorators.http import require_GET

from marketplace.accounts.audit import find_people, list_entries, write_csv
from marketplace.accounts.models import AuditEntry
from marketplace.common.downloads import LinesDownload
from marketplace.web.views.requests import PageRequest, page

ROWS_PER_PAGE = 100


@page
@require_GET
def show_audit_log(request: PageRequest) -> HttpResponse:
    context = build_context(request, organisation_id=request.organisation.pk)
    return render(request, "web/audit_log.html", context | {"csv_route": "audit_log_csv"})


@page
@require_GET
def download_audit_log(request: PageRequest) -> LinesDownload:
    entries = find_entries(request, organisation_id=request.organisation.pk)
    return LinesDownload(write_csv(entries), content_type="text/csv", name="audit-log.csv")


def build_context(request: HttpRequest, *, organisation_id: str | None) -> dict[str, Any]:
    """A page of entries and the filters that found them."""
    found = find_entries(request, organisation_id=organisation_id)
    before = request.GET.get("before", "")
    if before.isascii() and before.isdigit() and len(before) < 19:
        found = found.filter(pk__lt=int(before))
    entries = list(found[:ROWS_PER_PAGE])
    people = find_people(entries)
    rest = request.GET.copy()
    rest.pop("before", None)
    return {
        "entries": [
            (
                entry,
                people.get(entry.person_id, entry.person_id),
                " ".join(people.get(name, name) for name in entry.subject.split()),
            )
            for entry in entries
        ],
        "filters": {name: request.GET.get(name, "") for name in ("who", "what", "since", "until")},
        "query": rest.urlencode(),
        "older": entries[-1].pk if len(entries) == ROWS_PER_PAGE else None,
    }


def find_entries(request: HttpRequest, *, organisation_id: str | None) -> QuerySet[AuditEntry]:
    """What the page's filters ask for; dates are whole days of UTC."""
    until = _read_day(request.GET.get("until", ""))
    return list_entries(
        organisation_id=organisation_id,
        person=request.GET.get("who", "").replace("\0", ""),
        act=request.GET.get("what", "").replace("\0", ""),
        since=_read_day(request.GET.get("since", "")),
        until=None if until is None else until + timedelta(days=1),
    )


def _read_day(text: str) -> datetime | None:
    try:
        day = parse_date(text)
    except ValueError:
        return None
    return None if day is None else datetime.combine(day, time(), tzinfo=UTC)
