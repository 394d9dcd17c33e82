"""Where allauth's sign-up meets our own."""

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.internal import ratelimit
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse

from marketplace.accounts.audit import note_detail
from marketplace.accounts.lock_mail import ask_lock_mail
from marketplace.accounts.models import Organisation, User
from marketplace.common import clock
from marketplace.common.client_address import find_client_address, group_address

#: Counts wrong passwords for one account from anywhere; its limit stands in ACCOUNT_RATE_LIMITS.
_ANYWHERE: Any = {"app": "allauth.account", "action": "login_failed_anywhere"}
#: Names the account that a browser signed in to last: such a browser may go on trying to, when
#: strangers have used up what the account has.
KNOWN_BROWSER, _KNOWN_FOR_S = "finetender_known", 180 * 24 * 3600


class AccountAdapter(DefaultAccountAdapter):
    _anywhere: ratelimit.RateLimitUsage | None = None

    def get_client_ip(self, request: HttpRequest) -> str:
        return find_client_address(request)

    def _get_login_attempts_cache_key(self, request: HttpRequest, **credentials: Any) -> str:
        """Lock an account for one address: a stranger locks nobody else out."""
        key = super()._get_login_attempts_cache_key(request, **credentials)
        return f"{key}:{group_address(self.get_client_ip(request))}"

    def authentication_failed(self, request: HttpRequest, **credentials: Any) -> None:
        """Say in the audit log whose account was tried, by its id."""
        email = str(credentials.get("email", "")).lower().replace("\0", "")
        tried = User.objects.filter(email=email).values_list("pk", flat=True).first()
        if tried is not None:
            note_detail(account=tried)

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        email = str(credentials.get("email", "")).lower().replace("\0", "")
        address = self.get_client_ip(request)
        try:
            super().pre_authenticate(request, **credentials)
        except ValidationError:
            ask_lock_mail(email=email, address=address, now=clock.now())
            raise
        if self._is_known_browser(request, email):
            return
        self._anywhere = ratelimit.consume(request, **_ANYWHERE, key=email)
        if self._anywhere is None:
            ask_lock_mail(email=email, address=address, now=clock.now())
            raise self.validation_error("too_many_login_attempts")

    def _is_known_browser(self, request: HttpRequest, email: str) -> bool:
        known = request.get_signed_cookie(KNOWN_BROWSER, default="", max_age=_KNOWN_FOR_S)
        return bool(known) and User.objects.filter(pk=known, email=email).exists()

    def _rollback_login_failed_rl_usage(self) -> None:
        super()._rollback_login_failed_rl_usage()
        if self._anywhere is not None:
            self._anywhere.rollback()

    def _delete_login_attempts_cached_email(self, request: HttpRequest, **credentials: Any) -> None:
        """Who chose a new password by a mailed code may use it."""
        super()._delete_login_attempts_cached_email(request, **credentials)
        ratelimit.clear(request, **_ANYWHERE, key=str(credentials.get("email", "")).lower())

    def post_login(self, request: HttpRequest, user: User, **kwargs: Any) -> HttpResponse:
        response = super().post_login(request, user, **kwargs)
        response.set_signed_cookie(
            KNOWN_BROWSER,
            user.pk,
            max_age=_KNOWN_FOR_S,
            secure=settings.SESSION_COOKIE_SECURE,
            httponly=True,
            samesite="Lax",
        )
        return response

    def save_user(self, request: HttpRequest, user: User, form: Any, commit: bool = True) -> User:
        """Saves the person and their personal organisation, both or neither."""
        super().save_user(request, user, form, commit=False)
        user.email = user.email.lower()
        if commit:
            with transaction.atomic():
                user.save()
                Organisation.objects.get_or_create_personal(user)
        return user
