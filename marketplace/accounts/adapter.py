"""Where allauth's sign-up meets our own."""

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.internal.ratelimit import get_ip
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest

from marketplace.accounts.audit import note_detail
from marketplace.accounts.lock_mail import ask_lock_mail
from marketplace.accounts.models import Organisation, User
from marketplace.common import clock
from marketplace.common.client_address import find_client_address


class AccountAdapter(DefaultAccountAdapter):
    def get_client_ip(self, request: HttpRequest) -> str:
        return find_client_address(request)

    def _get_login_attempts_cache_key(self, request: HttpRequest, **credentials: Any) -> str:
        """Lock an account for one address: a stranger locks nobody else out."""
        key = super()._get_login_attempts_cache_key(request, **credentials)
        return f"{key}:{get_ip(request)}"

    def authentication_failed(self, request: HttpRequest, **credentials: Any) -> None:
        """Say in the audit log whose account was tried, by its id."""
        email = str(credentials.get("email", "")).lower().replace("\0", "")
        tried = User.objects.filter(email=email).values_list("pk", flat=True).first()
        if tried is not None:
            note_detail(account=tried)

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        try:
            super().pre_authenticate(request, **credentials)
        except ValidationError:
            ask_lock_mail(
                email=credentials.get("email", ""),
                address=self.get_client_ip(request),
                now=clock.now(),
            )
            raise

    def save_user(self, request: HttpRequest, user: User, form: Any, commit: bool = True) -> User:
        """Saves the person and their personal organisation, both or neither."""
        super().save_user(request, user, form, commit=False)
        user.email = user.email.lower()
        if commit:
            with transaction.atomic():
                user.save()
                Organisation.objects.get_or_create_personal(user)
        return user
