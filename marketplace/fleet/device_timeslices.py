"""Which node of a shared device has its turn. By its hours, so that all that asks says the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from marketplace.fleet.models import Node, NodeStatus
from marketplace.fleet.sale_hours import find_node_window
from marketplace.fleet.shared_devices import list_nodes_of
from workers.protocol.turns import DeviceTurn


@dataclass(frozen=True, slots=True)
class Rest:
    """A node that rests."""

    #: When its hours begin, or it can be there.
    until_at: datetime | None
    #: What its device serves meanwhile; ``None``: nothing.
    zone_name: str | None


def find_turn(nodes: Iterable[Node], *, busy: Collection[str], now: datetime) -> Node | None:
    """The node of a device whose process should run: one at work, else the one sold next.

    Parameters
    ----------
    busy
        Ids of nodes that hold leases: they end their last slot before another begins.
    """
    there: list[tuple[bool, datetime, str, Node]] = []
    for node in nodes:
        begin, end = find_node_window(node, now=now)
        begin = max(now, begin or now)
        is_over = end is not None and end <= begin
        # Without credentials it cannot run.
        if node.api_token_set_at is not None and (node.pk in busy or not is_over):
            there.append((node.pk not in busy, begin, node.pk, node))
    return min(there, key=lambda row: row[:3])[3] if there else None


def find_device_turn(node: Node, *, busy: Collection[str], now: datetime) -> DeviceTurn:
    """What the machine of a node is answered; one that has its device to itself always serves."""
    if node.shared_device_id is None:
        return DeviceTurn()
    turn = find_turn(list_nodes_of(node.shared_device_id), busy=busy, now=now)
    if turn is not None and turn.pk == node.pk:
        return DeviceTurn(serves=True)
    begin, _ = find_node_window(node, now=now)
    return DeviceTurn(serves=False, rests_until=None if begin is None else begin.timestamp())


def is_between_hours(node: Node, now: datetime) -> bool:
    """Whether a node that shares its device is not sold at present.

    One whose hours have just been changed to begin sooner is sold once its base can be loaded.
    """
    if node.shared_device_id is None:
        return False
    begin, _ = find_node_window(node, now=now)
    return any(from_at is not None and from_at > now for from_at in (begin, node.available_from_at))


def find_rest(node: Node, *, now: datetime) -> Rest | None:
    """Until when a node rests and what its device serves; ``None`` for one that does not rest."""
    if node.status != NodeStatus.RESTING or node.shared_device_id is None:
        return None
    begin, _ = find_node_window(node, now=now)
    begins = [at for at in (begin, node.available_from_at) if at is not None]
    turn = find_turn(list_nodes_of(node.shared_device_id), busy=(), now=now)
    return Rest(
        max(begins, default=None), None if turn is None or turn.pk == node.pk else turn.zone.name
    )
