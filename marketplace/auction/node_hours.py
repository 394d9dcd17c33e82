"""Hours of nodes that share a device: what is sold of one is not taken from it for another.

The lanes of their zones are held meanwhile: what they sold before is seen here, and what they sell
from then on is in the new hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import transaction

from marketplace.auction.locks import lock_lanes
from marketplace.auction.models import Reservation
from marketplace.common.errors import Conflict
from marketplace.fleet import services as fleet
from marketplace.fleet.models import Node
from marketplace.fleet.sale_hours import find_node_window
from marketplace.fleet.selectors import (
    find_node_by_api_token,
    slot_at,
    slot_ends_at,
    slot_starts_at,
)
from marketplace.fleet.shared_devices import list_nodes_of
from workers.protocol.messages import JoinReply, JoinRequest


def list_node(*, request: JoinRequest, now: datetime) -> JoinReply:
    """As ``fleet.join_node``.

    Raises
    ------
    Conflict
        ``slots_sold``: a node on its device has sold slots outside its hours, which it had not
        then; nothing was listed.
    """
    if not request.neighbour_token:
        return fleet.join_node(request=request, now=now)
    neighbour = find_node_by_api_token(request.neighbour_token, now=now)
    with transaction.atomic():
        if neighbour is not None:
            lock_lanes(_list_zones(neighbour))
        reply = fleet.join_node(request=request, now=now)
        if neighbour is not None:
            _check_sold_slots(Node.objects.get(pk=reply.node_id), now)
    return reply


def change_sale_hours(*, node: Node, change: Mapping[str, Any], now: datetime) -> Node:
    """As ``fleet.set_sale_hours``.

    Raises
    ------
    Conflict
        ``slots_sold``: slots of a node on a shared device are sold outside them, in which another
        node may be at work; nothing was changed.
    """
    while True:
        with transaction.atomic():
            held = _list_zones(Node.objects.get(pk=node.pk))
            if len(held) > 1:
                lock_lanes(held)
            changed = fleet.set_sale_hours(node=node, change=change, now=now)
            # Which nodes take turns with it stands still from here on.
            turns = _list_zones(changed)
            if len(turns) == 1 or turns <= held:
                _check_sold_slots(changed, now)
                return changed
            # One joined on its device before its lane was held, and may have been sold meanwhile.
            transaction.set_rollback(True)


def _list_zones(node: Node) -> frozenset[str]:
    """Of the nodes that take turns with a node, and its own."""
    shared = node.shared_device_id
    others = () if shared is None else list_nodes_of(shared)
    return frozenset({node.zone_id, *(other.zone_id for other in others)})


def _check_sold_slots(node: Node, now: datetime) -> None:
    """Of bids that a lane has received and not decided, the cells may be lost (``lane.enter``)."""
    if node.shared_device_id is None:
        return
    for other in list_nodes_of(node.shared_device_id):
        zone = other.zone
        held = Reservation.objects.filter(zone=zone, node=other, slot__gte=slot_at(zone, now))
        sold = held.filter(released_at=None).values_list("slot", flat=True)
        outside = [slot for slot in set(sold) if not _is_in_hours(other, slot)]
        if outside:
            until_at = slot_ends_at(zone, max(outside))
            raise Conflict(
                "slots_sold",
                f"Slots of {other.name} are sold outside these hours until {until_at:%d %B, %H:%M} "
                "UTC. Try again after that, or with hours that hold them.",
                param="opens",
            )


def _is_in_hours(node: Node, slot: int) -> bool:
    starts_at, ends_at = slot_starts_at(node.zone, slot), slot_ends_at(node.zone, slot)
    begin, end = find_node_window(node, now=starts_at)
    return (begin is None or begin <= starts_at) and (end is None or ends_at <= end)
