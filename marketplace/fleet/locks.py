"""Every row lock of this app, ordered by primary key. Call inside a transaction."""

from __future__ import annotations

from collections.abc import Iterable

from marketplace.common.errors import Conflict, NotAllowed
from marketplace.fleet.models import JoinToken, Node, NodeStatus, Provider, Zone


def lock_zone(zone_id: str) -> Zone:
    return Zone.objects.select_for_update(of=("self",)).get(pk=zone_id)


def lock_provider(provider_id: str) -> Provider:
    return Provider.objects.select_for_update(of=("self",)).get(pk=provider_id)


def lock_node(node_id: str) -> Node:
    return (
        Node.objects.select_for_update(of=("self",))
        .select_related("zone", "provider")
        .get(pk=node_id)
    )


def lock_present_node(node_id: str) -> Node:
    """A node that has not left.

    Raises
    ------
    Conflict
        ``node_left``.
    """
    node = lock_node(node_id)
    if node.status == NodeStatus.LEFT:
        raise Conflict("node_left", "This node has left already.")
    return node


def lock_token_holder(node_id: str, token_hash: str) -> Node:
    """The node, while that is its token or the one before, whose successor was never used.

    Raises
    ------
    NotAllowed
        ``node_token_replaced``.
    """
    node = lock_node(node_id)
    is_before = token_hash == node.old_api_token_hash and node.old_api_token_until_at is None
    if token_hash != node.api_token_hash and not is_before:
        raise NotAllowed("node_token_replaced", "This node has another token already.", status=401)
    return node


def lock_nodes(node_ids: Iterable[str]) -> list[Node]:
    return list(
        Node.objects.select_for_update(of=("self",))
        .select_related("zone")
        .filter(pk__in=list(node_ids))
        .order_by("pk")
    )


def lock_join_token(secret_hash: str) -> JoinToken | None:
    # Not its node: who waited for the lock would get the node of before the wait.
    return (
        JoinToken.objects.select_for_update(of=("self",))
        .select_related("zone", "provider")
        .filter(secret_hash=secret_hash)
        .first()
    )
