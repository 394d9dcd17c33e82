"""How an organisation comes to list nodes: it asks, and the operator approves."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import transaction

from marketplace.accounts.models import Organisation, User
from marketplace.common.errors import NotAllowed
from marketplace.common.queue import enqueue
from marketplace.fleet import locks
from marketplace.fleet.models import GONE, JoinToken, Node, NodeStatus, Provider


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
    if approved_by is not None:
        _check_operator(approved_by)
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


def withdraw_approval(*, provider: Provider, withdrawn_by: User, now: datetime) -> Provider:
    """Let a provider list nothing more: its nodes are drained, and its join commands are revoked.

    What was sold of its nodes is served; ``suspensions`` ends that, too. Doing so twice changes
    nothing, and a later approval drains nothing back: its provider puts nodes on sale again.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    """
    _check_operator(withdrawn_by)
    with transaction.atomic():
        provider = locks.lock_provider(provider.pk)
        if provider.approved_at is None:
            return provider
        provider.approved_at = provider.approved_by = provider.verified_at = None
        provider.save(update_fields=["approved_at", "approved_by", "verified_at"])
        JoinToken.objects.filter(provider=provider, revoked_at=None).update(revoked_at=now)
        here = Node.objects.filter(provider=provider).exclude(status=NodeStatus.LEFT)
        for node in locks.lock_nodes(here.values_list("pk", flat=True)):
            node.drained_at = node.drained_at or now
            if node.status not in GONE:
                node.status = NodeStatus.DRAINING
            node.save(update_fields=["drained_at", "status"])
        enqueue("auction.sweep")
    return provider


def set_provider_verified(
    *, provider: Provider, is_verified: bool, set_by: User, now: datetime
) -> Provider:
    """Say whether the operator knows who a provider is.

    Its word alone counts in spot checks, and owners may ask for verified providers only: such jobs
    lose their cells on its nodes when it is verified no more, and are planned again.

    Raises
    ------
    NotAllowed
        ``operators_only``, or ``provider_not_approved``.
    """
    _check_operator(set_by)
    with transaction.atomic():
        provider = locks.lock_provider(provider.pk)
        if is_verified:
            check_may_list(provider)
        since = (provider.verified_at or now) if is_verified else None
        provider.verified_at = since
        provider.save(update_fields=["verified_at"])
        # Lanes look at their nodes, and for new cells of the jobs that lose theirs.
        enqueue("auction.sweep")
    return provider


def _check_operator(user: User) -> None:
    if not user.is_operator:
        raise NotAllowed("operators_only", "Only an operator approves and verifies providers.")


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
