"""Operators go on only with a second factor: they grant money and see everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, resolve_url

from marketplace.accounts.models import User
from marketplace.accounts.policy import lacks_second_factor

#: Where a person can set up a second factor, or sign out; and the APIs, which answer for themselves
#: (``accounts.policy``) and would make nothing of a redirect.
ALLOWED = ("/accounts/", "/static/", "/api/", "/v1/")


class OperatorSecondFactorMiddleware:
    """Send operators without a second factor to where they set one up.

    Signing in asks for the factor itself (allauth), so an operator's session with a factor
    has passed it.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if _must_set_up(request):
            messages.warning(request, "Operators need a second factor. Set one up to go on.")
            return redirect(resolve_url("mfa_activate_totp"))
        return self.get_response(request)


def _must_set_up(request: HttpRequest) -> bool:
    if request.path_info.startswith(ALLOWED) or not request.user.is_authenticated:
        return False
    return lacks_second_factor(cast(User, request.user))
