"""Who did what in the whole market, for its operators."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from marketplace.accounts.audit import write_csv
from marketplace.common.downloads import LinesDownload
from marketplace.web.views.audit import build_context, find_entries
from marketplace.web.views.requests import PageRequest, operator_page


@operator_page
@require_GET
def show_audit_log(request: PageRequest) -> HttpResponse:
    context = build_context(request, organisation_id=None)
    context |= {"csv_route": "operator_audit_csv", "is_market": True}
    return render(request, "web/audit_log.html", context)


@operator_page
@require_GET
def download_audit_log(request: PageRequest) -> LinesDownload:
    entries = find_entries(request, organisation_id=None)
    return LinesDownload(write_csv(entries), content_type="text/csv", name="audit-log.csv")
