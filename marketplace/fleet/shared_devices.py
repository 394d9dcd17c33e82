"""A device that serves several zones in turn: a node for each, with hours that stay apart.

Auction, prices and pay know nodes only. Between the hours of two of them lies a changeover, in
which what ran is handed over and the other base model is loaded.
"""

from __future__ import annotations

from datetime import datetime, time, timedelta

from marketplace.common.errors import Conflict, NotAllowed, UserError
from marketplace.fleet import locks, selectors
from marketplace.fleet.models import Node, NodeStatus, Provider, SharedDevice

#: A base model may take this many times the longest time that it ever took to load.
LOAD_MARGIN = 1.5
_DAY_S = 86_400


def find_device_for_join(
    *, provider: Provider, neighbour_token: str, now: datetime
) -> SharedDevice | None:
    """The device of the node whose token a machine shows that joins; ``None`` without one.

    Call while holding the provider.

    Raises
    ------
    NotAllowed
        ``unknown_neighbour``: no node of this provider has that token.
    Conflict
        ``hours_missing``: that node is sold all day; or ``node_left``.
    """
    if not neighbour_token:
        return None
    neighbour = selectors.find_node_by_api_token(neighbour_token, now=now)
    if neighbour is None or neighbour.provider_id != provider.pk:
        raise NotAllowed(
            "unknown_neighbour",
            "The node on this GPU is not yours or not known any more. Join without --also, in "
            "another state directory.",
        )
    neighbour = locks.lock_present_node(neighbour.pk)
    if neighbour.sale_opens is None:
        raise _ask_for_hours(neighbour)
    if neighbour.shared_device is None:
        neighbour.shared_device = SharedDevice.objects.create(provider=provider, created_at=now)
        neighbour.save(update_fields=["shared_device"])
    return neighbour.shared_device


def check_hours_apart(node: Node) -> None:
    """Refuse hours of a node, stored or not, that leave its device too little time to change over.

    Call while holding the provider.

    Raises
    ------
    UserError
        ``invalid_hours``: it has none.
    Conflict
        ``hours_overlap``, or ``hours_missing`` of another node.
    """
    if node.shared_device_id is None:
        return
    for other in list_nodes_of(node.shared_device_id):
        if other.pk == node.pk:
            continue
        if node.sale_opens is None or node.sale_closes is None:
            raise UserError(
                "invalid_hours",
                f"{node.name} shares its GPU with {other.name}. Say from when and until when it "
                "is sold each day.",
                param="opens",
            )
        if other.sale_opens is None or other.sale_closes is None:
            raise _ask_for_hours(other)
        check_pair(node, other)


def leave_device_if_alone(node: Node) -> None:
    """Have a node that is to be sold all day take turns no more, if the others have left.

    Call while holding the provider; the node is not stored.
    """
    if node.shared_device_id is None or node.sale_opens is not None:
        return
    if all(other.pk == node.pk for other in list_nodes_of(node.shared_device_id)):
        node.shared_device = None


def delay_window(node: Node, *, before: datetime | None, now: datetime) -> None:
    """Have a node that rests, and whose hours are to begin sooner, sold once it can be there.

    Call while holding the provider, with its window set; the node is not stored.

    Parameters
    ----------
    before
        From when on it was sold until now.
    """
    if node.shared_device_id is None or node.status != NodeStatus.RESTING:
        return
    others = [one for one in list_nodes_of(node.shared_device_id) if one.pk != node.pk]
    takes_s = max((find_changeover_s(other, node) for other in others), default=0.0)
    there_at = now + timedelta(seconds=takes_s)
    # One that loads already is there when it was to be.
    there_at = there_at if before is None else min(before, there_at)
    if node.available_from_at is not None:
        node.available_from_at = max(node.available_from_at, there_at)


def list_nodes_of(device_id: int) -> list[Node]:
    """The nodes that take turns on a device; one that left has none."""
    here = Node.objects.filter(shared_device=device_id).exclude(status=NodeStatus.LEFT)
    return list(here.select_related("zone").order_by("pk"))


def find_changeover_s(before: Node, after: Node) -> float:
    """Seconds between one node's hours and those of the next on the device.

    What runs is stopped within the grace of its leases; then the base model is loaded.
    """
    return max(after.zone.slot_s, before.zone.lease_grace_s + LOAD_MARGIN * after.load_s)


def check_pair(one: Node, other: Node) -> None:
    """Refuse hours of two nodes of a device with less than a changeover between them.

    Raises
    ------
    Conflict
        ``hours_overlap``.
    """
    begins = [_read_second(node.sale_opens) for node in (one, other)]
    ends = [_read_second(node.sale_closes) for node in (one, other)]
    for first, then in ((0, 1), (1, 0)):
        before, after = (one, other)[first], (one, other)[then]
        length = (ends[first] - begins[first]) % _DAY_S
        until_next = (begins[then] - begins[first]) % _DAY_S
        needed = find_changeover_s(before, after)
        if until_next - length < needed:
            raise Conflict(
                "hours_overlap",
                f"{other.name} serves {other.zone.name} on the same GPU from "
                f"{other.sale_opens:%H:%M} to {other.sale_closes:%H:%M} UTC. Leave at least "
                f"{_tell_minutes(needed)} between {before.name} and {after.name}, to load the "
                "other base model.",
                param="opens",
            )


def _read_second(moment: time | None) -> int:
    assert moment is not None
    return moment.hour * 3600 + moment.minute * 60 + moment.second


def _tell_minutes(seconds: float) -> str:
    minutes = -(-seconds // 60)
    return f"{minutes:.0f} minute{'s' if minutes > 1 else ''}"


def _ask_for_hours(node: Node) -> Conflict:
    return Conflict(
        "hours_missing",
        f"{node.name} is on this GPU and sold all day. Give it hours of sale first, on the page "
        "Nodes.",
    )
