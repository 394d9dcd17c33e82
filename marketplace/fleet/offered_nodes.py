"""Machines that are on sale before they are rented."""

from __future__ import annotations

import secrets
from datetime import datetime

from django.db import transaction

from marketplace.fleet.asks import check_ask
from marketplace.fleet.models import Ask, Node, NodeStatus, Provider, Zone
from marketplace.fleet.providers import check_may_list


def list_offered_node(
    *,
    zone: Zone,
    provider: Provider,
    name: str,
    tier: str,
    measured: Node,
    ask_micros: int,
    boot_s: float,
    now: datetime,
) -> Node:
    """Put a machine that is not rented yet on sale, as what another of its kind measured."""
    check_may_list(provider)
    check_ask(ask_micros)
    with transaction.atomic():
        node = Node.objects.create(
            zone=zone,
            provider=provider,
            name=name,
            gpu_type=measured.gpu_type,
            tier=tier,
            compute_capacity=measured.compute_capacity,
            self_test_speed=measured.self_test_speed,
            memory_gb=measured.memory_gb,
            ask_micros=ask_micros,
            status=NodeStatus.OFFERED,
            boot_s=boot_s,
            # Nothing hashes to it: the machine that joins as this node shows a join token.
            api_token_hash=secrets.token_hex(32),
            facts=measured.facts,
            joined_at=now,
        )
        Ask.objects.create(node=node, ask_micros=ask_micros, set_by=None, set_at=now)
    return node


def note_rental(*, node: Node, at: datetime | None) -> None:
    """Note when the machine of a node that was on sale was started; ``None``: it was not after all.

    A node that joined before is left as it is.
    """
    Node.objects.filter(pk=node.pk, status=NodeStatus.OFFERED).update(rented_at=at)


def end_offer(*, node: Node, now: datetime) -> None:
    """Sell no more of a machine that is not rented; what was sold of it stays sold."""
    Node.objects.filter(pk=node.pk, status=NodeStatus.OFFERED).update(available_until_at=now)
