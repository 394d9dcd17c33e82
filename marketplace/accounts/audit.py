"""The audit log: who did what, written where the policy of routes lets somebody in.

A middleware records pages, the back office and sign-in; the API's views record the scopes that
commit an organisation; operators' commands record themselves. So a new page or address is in the
log without a line of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any

from django.contrib.messages import ERROR, get_messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import ResolverMatch, reverse
from rest_framework.request import Request

from marketplace.accounts.models import ApiKey, AuditEntry, Scope, User
from marketplace.common import clock
from marketplace.common.csv_rows import write_csv_row

READS = ("GET", "HEAD", "OPTIONS")
#: What a log of acts keeps of a form or a body; secrets, and what people are called, are not among
#: it: nothing is taken out of the log later.
KEPT_FIELDS = frozenset(
    {"role", "do", "amount", "amount_usd", "amount_micros", "reason", "scopes", "ask"}
    | {
        "is_operator",
        "is_superuser",
        "is_active",
        "limit",
        "organisation",
        "expires",
        "events",
        "policy",
        "status",
        "days",
    }
)
#: Most letters of a kept value.
KEPT_LENGTH = 120
#: Parts of addresses that name something, beside identifiers.
_NAMES = frozenset({"number", "month", "zone_name"})
#: A key's scopes of which each use is recorded; bids, data and jobs have logs of their own.
RECORDED_SCOPES = frozenset(
    {Scope.KEYS_WRITE, Scope.MEMBERS_WRITE, Scope.WEBHOOKS_WRITE}
    | {Scope.PROVIDER_WRITE, Scope.PAYOUTS_WRITE}
)
#: Pages that give away all that somebody has, or did.
RECORDED_READS = frozenset({"download_archive", "download_own_archive", "download_audit_log"})
#: Entries that are read at a time.
CSV_PAGE = 500
COLUMNS = ("at", "organisation", "person", "key", "act", "subject", "details", "done", "address")

_details: ContextVar[dict[str, str] | None] = ContextVar("audit_details", default=None)


def note_detail(**details: str) -> None:
    """Add what an act changed to its entry, for services that know more than the request says."""
    kept = _details.get()
    if kept is not None:
        kept.update({name: text[:KEPT_LENGTH] for name, text in details.items()})


class AuditMiddleware:
    """Record requests to pages, the back office and sign-in that change something.

    Also what operators open of others. The API stands outside: its views record for themselves. An
    entry is written after the act: a process that dies between the two answers nobody.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        details: dict[str, str] = {}
        token = _details.set(details)
        try:
            response = self.get_response(request)
        finally:
            _details.reset(token)
        match = request.resolver_match
        if match is not None and _is_recorded(request, match, response):
            changes = request.method not in READS
            write_entry(
                request,
                act=name_act(_find_name(request, match)),
                details=(_keep(request.POST) if changes else {}) | details,
                done=_is_done(request, response),
            )
        return response


def _find_name(request: HttpRequest, match: ResolverMatch) -> str:
    """Name a page after its function, and what libraries bring after its address."""
    ours = not request.path_info.startswith(("/admin/", "/accounts/"))
    return match.func.__name__ if ours else match.url_name or ""


def _is_recorded(request: HttpRequest, match: ResolverMatch, response: HttpResponse) -> bool:
    path = request.path_info
    if path.startswith(("/admin/", "/accounts/")):
        return request.method not in READS or "object_id" in match.kwargs
    audience = getattr(match.func, "audience", "public")
    if request.method in READS:
        opens = audience == "operator" and bool(match.kwargs)
        return opens or match.func.__name__ in RECORDED_READS
    # A bid's form is sent for each price it shows, and answered with a redirect once it is placed.
    asks = match.func.__name__.endswith("_form") and response.status_code == HTTPStatus.OK
    return audience != "public" and not asks


def record_call(request: Request, *, scopes: Mapping[str, str], done: bool) -> None:
    """Record a request to the API that commits an organisation, sets or takes something away.

    Looks are not recorded, but for those that need a scope of changes: they give all away.
    """
    # What answers GET answers HEAD as well.
    scope = scopes.get("GET" if request.method == "HEAD" else request.method or "", "")
    if not scope or (request.method in READS and not scope.endswith(":write")):
        return
    if scope in RECORDED_SCOPES or request.method in ("PUT", "DELETE"):
        of_django = request._request  # it has the caller that the view found
        match = of_django.resolver_match
        act = f"{request.method} /{match.route if match else ''}"
        write_entry(of_django, act=act, details={}, done=done)


def write_entry(
    request: HttpRequest, *, act: str, details: Mapping[str, str], done: bool
) -> AuditEntry:
    """Write one line: who asked, for which organisation, and what for."""
    user = getattr(request, "user", None)
    key = getattr(request, "auth", None)
    match = request.resolver_match
    return AuditEntry.objects.create(
        at=clock.now(),
        organisation_id=_find_organisation_id(request, key),
        person_id=user.pk if isinstance(user, User) else "",
        key_id=key.pk if isinstance(key, ApiKey) else "",
        act=act[:120],
        subject=_name_subject(match.kwargs if match else {}),
        details=dict(details),
        done=done,
        address=_read_address(request.META.get("REMOTE_ADDR", "")),
    )


def record_command(*, act: str, details: Mapping[str, str]) -> AuditEntry:
    """Write a line of what somebody did at the machine itself."""
    return AuditEntry.objects.create(
        at=clock.now(), act=act[:120], details=dict(details), done=True, address=None
    )


def name_act(name: str) -> str:
    """A view's name as a sentence: functions are named verb first."""
    words = name.removeprefix("show_").replace("_", " ").strip()
    return f"{words[:1].upper()}{words[1:]}".replace("api key", "API key").replace("Api", "API")


def list_entries(
    *,
    organisation_id: str | None = None,
    person: str = "",
    act: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
) -> QuerySet[AuditEntry]:
    """Entries of one organisation or of all, the latest first.

    Parameters
    ----------
    person
        Part of a mail address, or an identifier of a person or key.
    act
        Part of what was done or of what it was done to, or the organisation's id.
    """
    found = AuditEntry.objects.order_by("-pk")
    if organisation_id is not None:
        found = found.filter(organisation_id=organisation_id)
    if person:
        people = User.objects.filter(email__icontains=person).values_list("pk", flat=True)[:100]
        found = found.filter(person_id__in=[person, *people]) | found.filter(key_id=person)
    if act:
        of_organisation = found.filter(organisation_id=act)
        found = found.filter(act__icontains=act) | found.filter(subject__icontains=act)
        found = found | of_organisation
    if since is not None:
        found = found.filter(at__gte=since)
    return found if until is None else found.filter(at__lt=until)


def find_people(entries: list[AuditEntry]) -> dict[str, str]:
    """Mail addresses of those whom the entries name and who still have an account, by id."""
    named = {name for entry in entries for name in (entry.person_id, *entry.subject.split())}
    found = User.objects.filter(pk__in=[name for name in named if name.startswith("usr_")])
    return dict(found.values_list("pk", "email"))


def write_csv(entries: QuerySet[AuditEntry]) -> Iterator[str]:
    """Write the entries as lines of CSV, times in UTC."""
    yield write_csv_row(COLUMNS)
    for entry in iterate_newest_first(entries):
        yield write_csv_row(
            (
                entry.at.isoformat(),
                entry.organisation_id,
                entry.person_id,
                entry.key_id,
                entry.act,
                entry.subject,
                "; ".join(f"{name}: {text}" for name, text in sorted(entry.details.items())),
                "yes" if entry.done else "refused",
                entry.address or "",
            )
        )


def iterate_newest_first(entries: QuerySet[AuditEntry]) -> Iterator[AuditEntry]:
    """Give entries a page at a time, without a cursor that stays open between them."""
    page = list(entries[:CSV_PAGE])
    while page:
        yield from page
        page = list(entries.filter(pk__lt=page[-1].pk)[:CSV_PAGE])


def _read_address(text: str) -> str | None:
    """Read where a request came from; a local socket has no address."""
    try:
        return str(ip_address(text))
    except ValueError:
        return None


def _keep(fields: Mapping[str, Any]) -> dict[str, str]:
    kept = KEPT_FIELDS & fields.keys()
    return {name: _clean(str(fields[name]))[:KEPT_LENGTH] for name in kept if fields[name]}


def _find_organisation_id(request: HttpRequest, key: object) -> str:
    if isinstance(key, ApiKey):
        return key.organisation.pk
    # A lazy object around what may be none.
    return str(getattr(getattr(request, "organisation", None), "pk", ""))


def _is_done(request: HttpRequest, response: HttpResponse) -> bool:
    """Whether a page did what it was asked for.

    A form of a library that is sent again comes with 200, ours redirect and show the error.
    """
    if request.method in READS:
        return response.status_code < 400
    if request.path_info.startswith(("/admin/", "/accounts/")):
        return 300 <= response.status_code < 400
    if response.get("Location", "").startswith(reverse("account_reauthenticate")):
        return False
    queued = getattr(get_messages(request), "_queued_messages", ())
    return response.status_code < 400 and not any(each.level >= ERROR for each in queued)


def _name_subject(of_address: Mapping[str, Any]) -> str:
    """Name what an address is about; secrets in addresses are not kept."""
    kept = (v for k, v in of_address.items() if k.endswith("_id") or k in _NAMES)
    return _clean(" ".join(map(str, kept)))[:200]


def _clean(text: str) -> str:
    """Leave out what PostgreSQL keeps in no text."""
    return text.replace("\0", "")
