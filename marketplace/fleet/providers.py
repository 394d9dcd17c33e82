"""How an organisation comes to list nodes: it asks, and the operator approves."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import transaction

from marketplace.accounts.models import Organisation, User
from marketplace.common.errors import NotAllowed
from marketplace.fleet import locks
from marketplace.fleet.models import Provider


def ensure_provider(*, organisation: Organisation, now: datetime) -> Provider:
    """The organisation as a provider; approved at once where none need be."""
    with transaction.atomic():
        provider, _ = Provider.objects.get_or_create(
            organisation=organisation, defaults={"created_at": now}
        )
        if provider.approved_at is None and not settings.PROVIDERS_NEED_APPROVAL:
            provider = approve_provider(provider=provider, approved_by=None, now=now)
    return provider


def approve_provider(*, provider: Provider, approved_by: User | None, now: datetime) -> Provider:
    """Let a provider list nodes; one that may already is left as it is.

    ``approved_by`` is ``None`` for those that the market approves by itself.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    """
    if approved_by is not None and not approved_by.is_operator:
        raise NotAllowed("operators_only", "Only an operator approves providers.")
    with transaction.atomic():
        provider = locks.lock_provider(provider.pk)
        if provider.approved_at is not None:
            return provider
        provider.approved_at, provider.approved_by = now, approved_by
        provider.save(update_fields=["approved_at", "approved_by"])
        organisation = provider.organisation
        if not organisation.is_provider:
            organisation.is_provider = True
            organisation.save(update_fields=["is_provider", "updated_at"])
    return provider


def check_may_list(provider: Provider) -> None:
    """Refuse a provider that may list no nodes.

    Raises
    ------
    NotAllowed
        ``provider_not_approved`` or ``provider_suspended``.
    """
    if provider.suspended_at is not None:
        raise NotAllowed(
            "provider_suspended",
            f"{provider} is suspended and lists no nodes. Write to the operator of this market.",
        )
    if provider.approved_at is None:
        raise NotAllowed(
            "provider_not_approved",
            f"{provider} may list nodes once the operator of this market has approved it.",
        )
