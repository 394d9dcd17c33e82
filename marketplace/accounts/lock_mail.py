"""The mail to somebody whose account was locked: durable work, once an hour."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.core.cache import cache
from django.core.mail import send_mail
from django.urls import reverse

from marketplace.accounts.models import User
from marketplace.common.durable.kinds import HeldWork
from marketplace.common.durable.services import NewWork, restart_work

LOCK_MAIL = "accounts.lock_mail"
_EVERY_S = 3600
_TEXT = """Wrong passwords were entered for this account several times, at last from {address}.
Nobody can sign in to it from there for a few minutes. Browsers in which you were signed in
before go on working elsewhere; in others signing in may be stopped for up to an hour.

If it was you, or you cannot sign in, choose a new password. You can sign in with it at once:
{link}

If it was not you, you need not do anything. A second factor keeps out who guesses a password.
"""


def ask_lock_mail(*, email: str, address: str, now: datetime) -> None:
    """Have the mail sent, if there is such a person and they had none within an hour."""
    user = User.objects.filter(email=email.lower(), is_active=True).first()
    if user is not None and cache.add(f"accounts:lock-mail:{user.pk}", 1, _EVERY_S):
        # One that could not be sent before must not keep this one back.
        restart_work(NewWork(LOCK_MAIL, user.pk, due_at=now, payload={"address": address}))


def load_lock_mail(work: HeldWork) -> User | None:
    return User.objects.filter(pk=work.key, is_active=True).first()


def send_lock_mail(work: HeldWork, user: User) -> None:
    link = settings.PUBLIC_URL + reverse("account_reset_password")
    text = _TEXT.format(address=work.payload["address"], link=link)
    send_mail("[Finetender] Sign-in was stopped", text, None, [user.email])


def apply_lock_mail(work: HeldWork, user: User, result: None, *, now: datetime) -> None:
    """A mail is sent or not; no row says so."""
