"""What every view needs of a request, with its types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import cast

from allauth.account.decorators import reauthentication_required
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import resolve
from django.views.decorators.cache import never_cache

from marketplace.accounts.models import Organisation, User
from marketplace.accounts.policy import Right, check_right
from marketplace.accounts.recent_sign_in import APP
from marketplace.common.errors import UserError
from marketplace.common.request_rates import check_public_rate


class PageRequest(HttpRequest):
    """A request after ``ActingMiddleware``, by somebody signed in."""

    user: User  # type: ignore[assignment]
    organisation: Organisation


def _for(audience: str, view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Note on a view for whom it is, for the table of routes and roles."""
    view.audience = audience  # type: ignore[attr-defined]
    return view


def public_page(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Public and never cached; rate-limited by address."""

    @never_cache
    @wraps(view)
    def seen(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        check_public_rate(request)
        return view(request, *args, **kwargs)

    return _for("public", seen)


def person_page(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """For people who signed in, with any role in the organisation.

    Never stored by a cache, for it shows what is theirs.
    """

    @never_cache
    @login_required
    @wraps(view)
    def seen(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        return view(cast(PageRequest, request), *args, **kwargs)

    return _for("person", seen)


def page(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """For members of the organisation: all may look, those who work in it may change."""
    return _member_page(view, Right.WORK)


def money_page(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """For members of the organisation: all may look, those who pay may change."""
    return _member_page(view, Right.PAY)


@contextmanager
def show_refusal(request: HttpRequest) -> Iterator[None]:
    """Show why something is refused on the next page, instead of an error's page."""
    try:
        yield
    except UserError as error:
        messages.error(request, error.message)


def asks_again(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Before a page changes something, ask for the password or the second factor once more.

    What was sent is kept meanwhile. Stands below the decorator that says for whom the page is.
    """

    @wraps(view)
    def seen(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        # One that was kept comes with the address of the answer; the audit log names this page.
        request.resolver_match = resolve(request.path_info)
        return view(request, *args, **kwargs)

    asked = reauthentication_required(seen, allow_get=True, app=APP)
    return cast(Callable[..., HttpResponseBase], asked)


def asks_again_to_read(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Ask as well before something is read: for all of somebody's data at once."""
    asked = reauthentication_required(view, allow_get=False, app=APP)
    return cast(Callable[..., HttpResponseBase], asked)


def _member_page(
    view: Callable[..., HttpResponseBase], right: Right
) -> Callable[..., HttpResponseBase]:
    @person_page
    @wraps(view)
    def seen(request: PageRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        if request.method not in ("GET", "HEAD"):
            check_right(organisation=request.organisation, user=request.user, right=right)
        return view(request, *args, **kwargs)

    return _for(right, seen)


def owner_page(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """For owners of the organisation: what commits it to others, such as nodes and their asks."""

    @person_page
    @wraps(view)
    def seen(request: PageRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        check_right(organisation=request.organisation, user=request.user, right=Right.OWN)
        return view(request, *args, **kwargs)

    return _for(Right.OWN, seen)


def operator_page(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """For the people who run the market."""

    @person_page
    @wraps(view)
    def seen(request: PageRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        if not request.user.is_operator:
            raise PermissionDenied
        return view(request, *args, **kwargs)

    return _for("operator", seen)
