"""Asking who somebody is once more before keys, members, payouts or an account change.

A session that was left open, or stolen, so makes no key and adds no member.
"""

from __future__ import annotations

from allauth.account.internal.flows.reauthentication import is_reauthentication_required
from django.http import HttpRequest

from marketplace.accounts.models import Scope
from marketplace.common.errors import NotAllowed

#: The app of allauth whose settings say whether it is asked, and for how long an answer counts.
APP = "allauth.account"
#: What a session may change only after it was asked.
SCOPES = frozenset({Scope.KEYS_WRITE, Scope.MEMBERS_WRITE, Scope.PAYOUTS_WRITE})


def must_ask_again(request: HttpRequest) -> bool:
    """Whether a session was not asked lately who its person is."""
    return is_reauthentication_required(request, app=APP)


def check_recent_sign_in(request: HttpRequest, scope: str) -> None:
    """Refuse a session that wants to change keys, members or payouts and was not asked lately.

    Raises
    ------
    NotAllowed
        ``sign_in_again``.
    """
    if scope in SCOPES and must_ask_again(request):
        raise NotAllowed(
            "sign_in_again",
            "Confirm that it is you at /accounts/reauthenticate/, then send this again.",
        )
