"""Where allauth's sign-up meets our own."""

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from django.db import transaction
from django.http import HttpRequest

from marketplace.accounts.models import Organisation, User
from marketplace.common.client_address import find_client_address


class AccountAdapter(DefaultAccountAdapter):
    def get_client_ip(self, request: HttpRequest) -> str:
        return find_client_address(request)

    def save_user(self, request: HttpRequest, user: User, form: Any, commit: bool = True) -> User:
        """Saves the person and their personal organisation, both or neither."""
        super().save_user(request, user, form, commit=False)
        user.email = user.email.lower()
        if commit:
            with transaction.atomic():
                user.save()
                Organisation.objects.personal_ensure(user)
        return user
