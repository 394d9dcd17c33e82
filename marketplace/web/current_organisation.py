"""Who a request acts for, and how the pages say that something cannot be done."""

from collections.abc import Callable
from typing import cast
from zoneinfo import ZoneInfo, available_timezones

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.functional import SimpleLazyObject

from marketplace.accounts.models import Membership, Organisation, User
from marketplace.accounts.selectors import get_current_organisation
from marketplace.common.errors import NotAllowed, UserError

#: The session's key for the organisation chosen in the sidebar.
CHOSEN = "organisation"
_ZONES = frozenset(available_timezones())


def find_acting_organisation(request: HttpRequest) -> Organisation | None:
    """The organisation the visitor acts for; one they have left falls back to their own."""
    if not request.user.is_authenticated:
        return None
    user = cast(User, request.user)
    chosen = request.session.get(CHOSEN)
    if chosen is None:
        # Those who work for an organisation come for its sake rather than their own.
        shared = Membership.objects.filter(user=user).exclude(organisation__personal_for=user)
        chosen = shared.order_by("pk").values_list("organisation", flat=True).first()
    try:
        return get_current_organisation(user=user, organisation_id=chosen)
    except NotAllowed:
        request.session.pop(CHOSEN, None)
        return get_current_organisation(user=user)


class ActingMiddleware:
    """``request.organisation``, times in the visitor's zone, and clear words for refusals."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request.organisation = SimpleLazyObject(lambda: find_acting_organisation(request))  # type: ignore[attr-defined]
        zone = request.COOKIES.get("tz", "")
        with timezone.override(ZoneInfo(zone) if zone in _ZONES else None):
            return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """An unhandled refusal: its sentence on a page, or as JSON to a script."""
        if not isinstance(exception, UserError):
            return None
        if request.headers.get("accept", "").startswith("application/json"):
            body = {"code": exception.code, "message": exception.message, **exception.extra}
            return JsonResponse(body, status=exception.status)
        context = {"title": TITLES.get(exception.status, "This cannot be done"), "error": exception}
        return render(request, "web/refused.html", context, status=exception.status)


TITLES = {
    402: "Not enough in the wallet",
    403: "Not yours to see",
    404: "Nothing here",
    409: "This has changed since you opened the page",
    429: "Too many requests",
}
