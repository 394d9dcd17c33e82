"""Excluding a node or a whole provider: an operator's word, which no provider can undo.

A suspended node runs nothing: its leases are taken back and its jobs planned again. It keeps its
credentials, so that it hears what became of it; ``tokens`` takes those away.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from marketplace.accounts.models import User
from marketplace.accounts.oversight import check_operator, read_reason
from marketplace.common.errors import Conflict
from marketplace.fleet import locks, selectors
from marketplace.fleet.models import Node, NodeStatus, Provider


def suspend_node(*, node: Node, suspended_by: User | None, reason: str, now: datetime) -> Node:
    """Trust the node with no job until an operator lifts it; doing so twice changes nothing.

    Parameters
    ----------
    suspended_by
        ``None`` where the market does so by itself.
    reason
        In words, for the provider.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    UserError
        ``invalid_reason``.
    Conflict
        ``node_left``.
    """
    if suspended_by is not None:
        check_operator(suspended_by)
    reason = read_reason(reason)
    with transaction.atomic():
        node = locks.lock_present_node(node.pk)
        if node.suspended_at is None:
            _suspend(node, suspended_by, reason, now)
    return node


def lift_node_suspension(*, node: Node, lifted_by: User, now: datetime) -> Node:
    """Trust the node again; it is on sale unless it is silent or its provider drained it.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    Conflict
        ``node_left``, ``node_not_suspended``, or ``provider_suspended``.
    """
    check_operator(lifted_by)
    with transaction.atomic():
        node = locks.lock_present_node(node.pk)
        if node.suspended_at is None:
            raise Conflict("node_not_suspended", "This node is not suspended.")
        if node.provider.suspended_at is not None:
            raise Conflict(
                "provider_suspended", "The whole provider is suspended. Lift that suspension."
            )
        _lift(node, now)
    return node


def suspend_provider(
    *, provider: Provider, suspended_by: User, reason: str, now: datetime
) -> Provider:
    """Suspend all nodes of a provider and let it list no more; its join tokens list nothing.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    UserError
        ``invalid_reason``.
    """
    check_operator(suspended_by)
    reason = read_reason(reason)
    with transaction.atomic():
        provider = locks.lock_provider(provider.pk)
        if provider.suspended_at is not None:
            return provider
        provider.suspended_at, provider.suspended_by = now, suspended_by
        provider.suspended_reason = reason
        provider.save(update_fields=["suspended_at", "suspended_by", "suspended_reason"])
        nodes = Node.objects.filter(provider=provider, suspended_at=None)
        for node in locks.lock_nodes(
            nodes.exclude(status=NodeStatus.LEFT).values_list("pk", flat=True)
        ):
            _suspend(node, suspended_by, reason, now)
    return provider


def lift_provider_suspension(*, provider: Provider, lifted_by: User, now: datetime) -> Provider:
    """Let the provider list nodes again; what was suspended with it is lifted with it.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    Conflict
        ``provider_not_suspended``.
    """
    check_operator(lifted_by)
    with transaction.atomic():
        provider = locks.lock_provider(provider.pk)
        since = provider.suspended_at
        if since is None:
            raise Conflict("provider_not_suspended", "This provider is not suspended.")
        provider.suspended_at = provider.suspended_by = None
        provider.suspended_reason = ""
        provider.save(update_fields=["suspended_at", "suspended_by", "suspended_reason"])
        nodes = Node.objects.filter(provider=provider, suspended_at=since)
        for node in locks.lock_nodes(
            nodes.exclude(status=NodeStatus.LEFT).values_list("pk", flat=True)
        ):
            _lift(node, now)
    return provider


def _suspend(node: Node, suspended_by: User | None, reason: str, now: datetime) -> None:
    node.suspended_at, node.suspended_by, node.suspended_reason = now, suspended_by, reason
    node.status = NodeStatus.SUSPENDED
    node.save(update_fields=["suspended_at", "suspended_by", "suspended_reason", "status"])


def _lift(node: Node, now: datetime) -> None:
    node.suspended_at = node.suspended_by = None
    node.suspended_reason, node.faults_in_row = "", 0
    node.status = selectors.find_present_status(node, now)
    node.save(
        update_fields=[
            *("suspended_at", "suspended_by", "suspended_reason"),
            *("faults_in_row", "status"),
        ]
    )
