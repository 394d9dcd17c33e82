"""What is heard of nodes: from their own processes, and from machines whose nodes rest."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import DurationField, ExpressionWrapper, F, Value
from django.db.models.functions import Coalesce

from marketplace.common.errors import NotAllowed, UserError
from marketplace.fleet import device_timeslices, locks, selectors
from marketplace.fleet.models import Node, NodeStatus
from workers.protocol.messages import Heartbeat
from workers.protocol.turns import DeviceTurn, DeviceTurnRequest

#: Between these a node goes by its own heartbeats.
_ITS_OWN = (
    *(NodeStatus.JOINING, NodeStatus.ONLINE, NodeStatus.STOPPING, NodeStatus.OFFLINE),
    NodeStatus.RESTING,
)
#: What a base model's loading is taken for at most.
_LOAD_MAX_S = 6 * 3600.0


def record_heartbeat(*, node: Node, heartbeat: Heartbeat, now: datetime) -> Node:
    """The node is alive; one that was silent, or was being stopped, is on sale again.

    One that drains, is suspended or has left stays so: its provider or an operator changes that.
    One that is stopped as its hours end rests; what is sold of it later stays sold.
    """
    with transaction.atomic():
        node = locks.lock_node(node.pk)
        node.last_heartbeat_at = now
        node.memory_used_gb = heartbeat.memory_used_gb
        node.load_s = max(node.load_s, min(heartbeat.load_s, _LOAD_MAX_S))
        if node.status in _ITS_OWN:
            heard = NodeStatus.ONLINE if node.drained_at is None else NodeStatus.DRAINING
            gone = (
                NodeStatus.RESTING
                if device_timeslices.is_between_hours(node, now)
                else NodeStatus.STOPPING
            )
            node.status = gone if heartbeat.draining else heard
        node.save(update_fields=["last_heartbeat_at", "memory_used_gb", "load_s", "status"])
    return node


def answer_turn(
    *, node: Node, request: DeviceTurnRequest, busy: Collection[str], now: datetime
) -> DeviceTurn:
    """Say whether the node's process should run, and note that its machine is there.

    Between its hours a node whose process does not run, or loads, is heard by this alone: it rests.
    In its hours only its process speaks for it, so a changeover that takes too long is a node that
    is silent.

    Parameters
    ----------
    busy
        Ids of those nodes of its device that hold leases.

    Raises
    ------
    UserError
        ``wrong_node``; ``node_left``, from which its machine knows that it has no turn any more.
    """
    if request.node_id != node.pk:
        raise UserError("wrong_node", "This request names another node than its token.")
    if node.status == NodeStatus.LEFT:
        raise NotAllowed("node_left", "This node has left already.")
    with transaction.atomic():
        node = locks.lock_node(node.pk)
        is_loading = request.is_up and node.status == NodeStatus.RESTING
        if device_timeslices.is_between_hours(node, now) and (is_loading or not request.is_up):
            node.last_heartbeat_at = now
            if node.status in _ITS_OWN:
                rested = node.drained_at is None
                node.status = NodeStatus.RESTING if rested else NodeStatus.DRAINING
            node.save(update_fields=["last_heartbeat_at", "status"])
    return device_timeslices.find_device_turn(node, busy=busy, now=now)


def sweep_offline_nodes(*, now: datetime) -> tuple[str, ...]:
    """Mark silent nodes; one that was asked to leave has left. Returns the ids that changed."""
    missed = timedelta(seconds=selectors.HEARTBEATS_MISSED)
    limit = F("zone__heartbeat_every_s") * Value(missed, output_field=DurationField())
    silent = Node.objects.annotate(
        heard_at=Coalesce("last_heartbeat_at", "joined_at"),
        limit=Value(now) - ExpressionWrapper(limit, output_field=DurationField()),
    ).filter(
        heard_at__lte=F("limit"),
        status__in=[
            *(NodeStatus.JOINING, NodeStatus.ONLINE, NodeStatus.STOPPING, NodeStatus.DRAINING),
            NodeStatus.RESTING,
        ],
    )
    changed: list[str] = []
    # Most often there is none, and nothing is locked.
    for zone_id in sorted(set(silent.values_list("zone_id", flat=True))):
        heard = silent.filter(zone=zone_id)
        with transaction.atomic():
            locks.lock_nodes(heard.values_list("pk", flat=True))
            # Asked again under the lock: a heartbeat may have come in between.
            changed += heard.values_list("pk", flat=True)
            leaving = heard.filter(status=NodeStatus.DRAINING, leave_asked_at__isnull=False)
            leaving.update(status=NodeStatus.LEFT, left_at=now)
            heard.update(status=NodeStatus.OFFLINE)
    return tuple(sorted(changed))
