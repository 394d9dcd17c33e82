"""What every view needs of a request, with its types."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import wraps
from typing import cast

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.views.decorators.cache import never_cache

from marketplace.accounts.models import PAYERS, WORKERS, Organisation, User
from marketplace.accounts.services import check_owner, check_role
from marketplace.common.request_rates import check_public_rate


class PageRequest(HttpRequest):
    """A request after ``ActingMiddleware``, by somebody signed in."""

    user: User  # type: ignore[assignment]
    organisation: Organisation


def public_page(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Public and never cached; rate-limited by address."""

    @never_cache
    @wraps(view)
    def seen(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        check_public_rate(request)
        return view(request, *args, **kwargs)

    return seen


def person_page(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """For people who signed in, with any role in the organisation.

    Never stored by a cache, for it shows what is theirs.
    """

    @never_cache
    @login_required
    @wraps(view)
    def seen(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        return view(cast(PageRequest, request), *args, **kwargs)

    return seen


def page(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """For members of the organisation: all may look, those who work in it may change."""
    return _role_page(view, WORKERS)


def money_page(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """For members of the organisation: all may look, those who pay may change."""
    return _role_page(view, PAYERS)


def _role_page(
    view: Callable[..., HttpResponseBase], roles: Collection[str]
) -> Callable[..., HttpResponseBase]:
    @person_page
    @wraps(view)
    def seen(request: PageRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        if request.method not in ("GET", "HEAD"):
            check_role(organisation=request.organisation, user=request.user, roles=roles)
        return view(request, *args, **kwargs)

    return seen


def owner_page(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """For owners of the organisation: what commits it to others, such as nodes and their asks."""

    @person_page
    @wraps(view)
    def seen(request: PageRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        check_owner(organisation=request.organisation, user=request.user)
        return view(request, *args, **kwargs)

    return seen


def operator_page(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """For the people who run the market."""

    @person_page
    @wraps(view)
    def seen(request: PageRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        if not request.user.is_operator:
            raise PermissionDenied
        return view(request, *args, **kwargs)

    return seen
