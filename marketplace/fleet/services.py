"""What changes the fleet; how nodes join is in ``joining``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from django.db import transaction

from marketplace.accounts.models import User
from marketplace.common.errors import Conflict
from marketplace.fleet import base_models, locks, selectors
from marketplace.fleet.asks import check_ask, check_availability
from marketplace.fleet.heartbeats import answer_turn, record_heartbeat, sweep_offline_nodes
from marketplace.fleet.joining import (
    ListingTerms,
    create_join_token,
    join_node,
    list_join_models,
    note_join_step,
    open_listing,
)
from marketplace.fleet.models import GONE, Ask, Node, NodeStatus, Zone
from marketplace.fleet.policy_settings import check_policy_settings, set_policy_settings
from marketplace.fleet.providers import (
    approve_provider,
    check_may_list,
    ensure_provider,
    set_provider_verified,
    withdraw_approval,
)
from marketplace.fleet.sale_hours import move_sale_windows, set_sale_hours
from marketplace.fleet.self_test import compare_job_counts, read_measured_speeds
from marketplace.fleet.speeds import MEASUREMENTS_KEPT, bound_measurement, estimate_speed
from marketplace.fleet.suspensions import (
    lift_node_suspension,
    lift_provider_suspension,
    suspend_node,
    suspend_provider,
)
from marketplace.fleet.tokens import (
    note_token_use,
    open_plan_session,
    revoke_join_token,
    revoke_node_token,
    rotate_node_token,
)
from workers.protocol.model_shape import ModelShape

__all__ = [
    "ListingTerms",
    "ZoneModel",
    "ZoneSlots",
    "answer_turn",
    "approve_provider",
    "ask_node_to_leave",
    "create_join_token",
    "drain_node",
    "ensure_provider",
    "ensure_zone",
    "join_node",
    "lift_node_suspension",
    "lift_provider_suspension",
    "list_join_models",
    "move_sale_windows",
    "note_join_step",
    "note_node_fault",
    "note_node_work",
    "note_token_use",
    "open_listing",
    "open_plan_session",
    "record_heartbeat",
    "record_node_speed",
    "reset_node_speed",
    "retire_node",
    "revoke_join_token",
    "revoke_node_token",
    "rotate_node_token",
    "set_node_ask",
    "set_node_availability",
    "set_policy_settings",
    "set_provider_verified",
    "set_sale_hours",
    "suspend_node",
    "suspend_provider",
    "sweep_offline_nodes",
    "undrain_node",
    "withdraw_approval",
]

FAULTS_IN_ROW_MAX = 3
#: A node's capacity follows its measured speed in steps of at least this share.
SPEED_CHANGE_LEAST = 0.2


@dataclass(frozen=True, slots=True)
class ZoneModel:
    """The base model of a new zone, and what it takes."""

    name: str
    #: A folder of this machine, or a repository of models.
    source: str
    memory_gb: float
    max_sequence_length: int
    #: ``None``: read from its ``config.json``.
    shape: ModelShape | None = None
    #: In tokens, of the samples that work is counted in; ``None``: the longest.
    reference_sequence_length: int | None = None


@dataclass(frozen=True, slots=True)
class ZoneSlots:
    """The time that a new zone sells."""

    length_s: int
    #: Slots on sale at once.
    horizon: int
    #: When slot 0 began.
    epoch_at: datetime


def ensure_zone(
    *,
    name: str,
    base_model: ZoneModel,
    slots: ZoneSlots,
    now: datetime,
    policy_settings: dict[str, Any] | None = None,
    **terms: Any,
) -> Zone:
    """The zone of that name, made if there is none; an existing one is left as it is.

    ``terms`` are further columns of ``Zone``, such as ``jobs_per_node`` or ``lease_grace_s``.

    Raises
    ------
    UserError
        ``invalid_policy_setting``; nothing was made.
    Conflict
        ``base_model_replaced``: the zone was opened with another model than is bundled now.
    """
    existing = Zone.objects.filter(name=name).first()
    if existing is not None:
        _check_base_model(existing)
        return existing
    check_policy_settings(policy_settings or {})
    shape = base_model.shape or base_models.read_model_shape(base_model.source)
    longest = base_model.max_sequence_length
    zone, _ = Zone.objects.get_or_create(
        name=name,
        defaults={
            "base_model_name": base_model.name,
            "base_model_source": base_model.source,
            "base_model_sha256": base_models.hash_bundled_model(base_model.source),
            "model_shape": asdict(shape),
            "slot_s": slots.length_s,
            "horizon_slots": slots.horizon,
            "epoch_at": slots.epoch_at,
            "base_memory_gb": base_model.memory_gb,
            "settings": policy_settings or {},
            "max_sequence_length": longest,
            "reference_sequence_length": base_model.reference_sequence_length or longest,
            "created_at": now,
            **terms,
        },
    )
    return zone


def _check_base_model(zone: Zone) -> None:
    """What its nodes would refuse to load must not be sold."""
    pinned = zone.base_model_sha256
    is_bundled = base_models.is_bundled(zone.base_model_source)
    if is_bundled and pinned and pinned != base_models.hash_bundled_model(zone.base_model_source):
        raise Conflict(
            "base_model_replaced",
            f"The zone {zone.name} was opened with the {zone.base_model_name} of another release, "
            "and its jobs cannot be trained with the one of this release. Start with a new data "
            "folder (move .data/demo away, or name another in DATA_DIR), or install the release "
            "that opened the zone.",
        )


def set_node_ask(*, node: Node, ask_micros: int, set_by: User | None, now: datetime) -> Node:
    """A new ask for cells not yet sold; those sold keep the ask of their sale.

    Raises
    ------
    UserError
        ``invalid_ask``.
    Conflict
        ``node_left``.
    """
    check_ask(ask_micros)
    with transaction.atomic():
        node = locks.lock_present_node(node.pk)
        if node.ask_micros != ask_micros:
            node.ask_micros = ask_micros
            node.save(update_fields=["ask_micros"])
            Ask.objects.create(node=node, ask_micros=ask_micros, set_by=set_by, set_at=now)
    return node


def set_node_availability(
    *,
    node: Node,
    available_from_at: datetime | None,
    available_until_at: datetime | None,
    now: datetime,
) -> Node:
    """When cells of the node may be sold; those sold outside it are still served.

    Raises
    ------
    UserError
        ``invalid_availability``.
    Conflict
        ``device_shared``: its hours say when it is sold, by which other nodes go, too.
    """
    check_availability(available_from_at, available_until_at, now)
    with transaction.atomic():
        node = locks.lock_node(node.pk)
        if node.shared_device_id is not None:
            raise Conflict(
                "device_shared",
                f"{node.name} shares its GPU with other nodes. Change its hours of sale instead.",
            )
        node.available_from_at = available_from_at
        node.available_until_at = available_until_at
        node.save(update_fields=["available_from_at", "available_until_at"])
    return node


def drain_node(*, node: Node, now: datetime) -> Node:
    """Sell no more of the node; what was sold is served, and it stays until asked to leave."""
    with transaction.atomic():
        node = locks.lock_present_node(node.pk)
        if node.status == NodeStatus.OFFERED:
            raise Conflict(
                "node_not_rented",
                "This machine is not rented yet. Take it off sale with manage.py tiers_set, "
                "without --sell-offers.",
            )
        if node.drained_at is None:
            node.drained_at = now
        if node.status not in GONE:
            node.status = NodeStatus.DRAINING
        node.save(update_fields=["status", "drained_at"])
    return node


def ask_node_to_leave(*, node: Node, now: datetime) -> Node:
    """Drain the node and let it leave once what was sold is served; one that runs nothing, now."""
    with transaction.atomic():
        node = drain_node(node=node, now=now)
        node.leave_asked_at = node.leave_asked_at or now
        node.save(update_fields=["leave_asked_at"])
        if node.status == NodeStatus.SUSPENDED or selectors.is_node_silent(node, now):
            return retire_node(node=node, now=now)
    return node


def undrain_node(*, node: Node, now: datetime) -> Node:
    """Put a drained node back on sale, also one that was asked to leave.

    One that is suspended is sold again only when an operator has lifted that, too.
    """
    with transaction.atomic():
        node = locks.lock_present_node(node.pk)
        if node.drained_at is None:
            raise Conflict("node_not_draining", "Only a drained node can be put back on sale.")
        if node.provider.suspended_at is None:
            # Its approval may have been withdrawn; a suspension is lifted by itself.
            check_may_list(node.provider)
        node.drained_at = node.leave_asked_at = None
        node.status = selectors.find_present_status(node, now)
        node.save(update_fields=["status", "drained_at", "leave_asked_at"])
    return node


def note_node_fault(*, node: Node, now: datetime) -> Node:
    """A job failed on the node through no fault of its owner; too many in a row suspend it."""
    with transaction.atomic():
        node = locks.lock_node(node.pk)
        node.faults_in_row += 1
        node.save(update_fields=["faults_in_row"])
        if node.faults_in_row >= FAULTS_IN_ROW_MAX and node.status not in GONE:
            reason = f"{node.faults_in_row} jobs in a row failed on it by no fault of their owners."
            return suspend_node(node=node, suspended_by=None, reason=reason, now=now)
    return node


def note_node_work(*, node: Node) -> None:
    """The node delivered a checkpoint or an adapter: it works."""
    Node.objects.filter(pk=node.pk, faults_in_row__gt=0).update(faults_in_row=0)


def retire_node(*, node: Node, now: datetime) -> Node:
    """The drained node is gone; doing so twice changes nothing."""
    with transaction.atomic():
        node = locks.lock_node(node.pk)
        if node.status != NodeStatus.LEFT:
            node.status = NodeStatus.LEFT
            node.left_at = now
            node.save(update_fields=["status", "left_at"])
    return node


def record_node_speed(*, node: Node, units_per_s: float, jobs: int) -> Node:
    """Note how fast the whole node was seen to work, which is what it is sold as from now on.

    Parameters
    ----------
    units_per_s : float
        Work units a second of all its jobs together.
    jobs : int
        How many those were: by the self-test, a full node may be faster.
    """
    with transaction.atomic():
        node = locks.lock_node(node.pk)
        full = compare_job_counts(
            read_measured_speeds(node),
            selectors.get_work_costs(node.zone),
            jobs=jobs,
            full=node.zone.jobs_per_node,
        )
        bounded = bound_measurement(
            units_per_s * full, current=node.compute_capacity / node.zone.slot_s
        )
        if bounded is not None:
            node.measured_speeds = [*node.measured_speeds, bounded][-MEASUREMENTS_KEPT:]
            _apply_speed(node)
    return node


def reset_node_speed(*, node: Node) -> Node:
    """Forget what the node's jobs were seen to do; its self-test counts again."""
    with transaction.atomic():
        node = locks.lock_present_node(node.pk)
        node.measured_speeds = []
        _apply_speed(node)
    return node


def _apply_speed(node: Node) -> None:
    speed = estimate_speed(self_test=node.self_test_speed, measured=node.measured_speeds)
    capacity = speed * node.zone.slot_s
    # The engine hears of what matters only: a change of terms is an entry in the log.
    if not node.measured_speeds or abs(capacity / node.compute_capacity - 1) > SPEED_CHANGE_LEAST:
        node.compute_capacity = capacity
    node.save(update_fields=["measured_speeds", "compute_capacity"])
