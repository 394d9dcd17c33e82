"""What may be asked of the fleet; nothing here writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import QuerySet

from marketplace.accounts.models import Organisation
from marketplace.common.errors import NotFound
from marketplace.fleet import memory
from marketplace.fleet.models import JoinToken, Node, NodeStatus, Provider, Speed, Zone
from marketplace.fleet.secrets import secret_hash
from marketplace.fleet.slots import (
    first_slot_from,
    last_slot_until,
    slot_at,
    slot_ends_at,
    slot_starts_at,
)
from marketplace.fleet.speeds import OUTLIER_FACTOR, SpeedRow, total_speed
from scheduler import types as scheduler
from workers.protocol.messages import AdapterKind, AdapterSpec, BaseModelRef, TrainingSpec
from workers.protocol.model_shape import ModelShape

__all__ = [
    "ZoneSpeeds",
    "base_model_ref",
    "find_node_by_api_token",
    "find_provider",
    "first_slot_from",
    "get_open_zone",
    "get_zones_by_name",
    "last_slot_until",
    "list_open_zones",
    "list_waiting_providers",
    "load_zone_speeds",
    "memory_demand",
    "model_shape",
    "node_is_silent",
    "nodes_on_sale",
    "rates",
    "reference_capacity",
    "scheduler_node",
    "silent_since",
    "slot_at",
    "slot_ends_at",
    "slot_starts_at",
    "work_weight",
]

#: Heartbeats a node may miss before it counts as gone.
HEARTBEATS_MISSED = 3


def find_provider(organisation: Organisation) -> Provider | None:
    """The organisation as a provider, approved or not; ``None`` when it never asked."""
    return Provider.objects.filter(organisation=organisation).first()


def list_waiting_providers() -> QuerySet[Provider]:
    """Those who ask to list nodes, the longest waiting first."""
    waiting = Provider.objects.filter(approved_at__isnull=True)
    return waiting.select_related("organisation").order_by("created_at", "pk")


def list_providers() -> QuerySet[Provider]:
    """Everybody who may list nodes, or might but for a suspension."""
    approved = Provider.objects.select_related("organisation").exclude(approved_at=None)
    return approved.order_by("organisation__name", "pk")


def list_open_join_tokens(provider: Provider, *, now: datetime) -> QuerySet[JoinToken]:
    """Join tokens that a machine may still use, newest first."""
    unused = JoinToken.objects.filter(provider=provider, used_at=None, revoked_at=None)
    return unused.filter(expires_at__gt=now).select_related("zone").order_by("-created_at")


def list_open_zones() -> QuerySet[Zone]:
    return Zone.objects.filter(is_open=True).order_by("name")


def get_zones_by_name(names: Iterable[str]) -> dict[str, Zone]:
    """Zones by name, closed ones too; unknown names are left out."""
    # PostgreSQL refuses to be asked for a text with a null byte.
    asked = [name for name in names if "\0" not in name]
    return {zone.name: zone for zone in Zone.objects.filter(name__in=asked)}


def get_open_zone(name: str) -> Zone:
    """The open zone of a name.

    Raises
    ------
    NotFound
        ``unknown_zone``, with the names there are.
    """
    zone = Zone.objects.filter(name=name, is_open=True).first()
    if zone is None:
        names = ", ".join(list_open_zones().values_list("name", flat=True)) or "none yet"
        raise NotFound(
            "unknown_zone", f"There is no zone {name!r}; there are: {names}.", param="zone"
        )
    return zone


def base_model_ref(zone: Zone) -> BaseModelRef:
    """What a node loads to serve the zone."""
    return BaseModelRef(
        name=zone.base_model_name,
        source=zone.base_model_source,
        revision=zone.base_model_revision or None,
        dtype=zone.dtype,
        four_bit=zone.four_bit,
    )


def nodes_on_sale(zone: Zone) -> QuerySet[Node]:
    """Nodes whose free cells may be sold now; availability is each node's own."""
    return (
        Node.objects.filter(zone=zone, status=NodeStatus.ONLINE)
        .select_related("gpu_type", "provider")
        .order_by("pk")
    )


def scheduler_node(zone: Zone, node: Node) -> scheduler.Node:
    """The engine's value of a node; only whole slots inside its availability are sold."""
    return scheduler.Node(
        id=node.pk,
        gpu_type=node.gpu_type_id,
        compute_capacity=node.compute_capacity,
        memory_capacity=node.memory_gb,
        ask=float(node.ask_micros),
        available_from=(
            None
            if node.available_from_at is None
            else first_slot_from(zone, node.available_from_at)
        ),
        available_until=(
            None
            if node.available_until_at is None
            else last_slot_until(zone, node.available_until_at)
        ),
    )


@dataclass(frozen=True, slots=True)
class ZoneSpeeds:
    """What a zone has measured, read at one moment."""

    #: The speed table by GPU type; types without a node on sale are left out.
    rows: dict[str, list[SpeedRow]]
    measured_memory: tuple[memory.MeasuredMemory, ...]
    #: The least capacity among the nodes of a GPU type.
    smallest_capacities: dict[str, float]


def load_zone_speeds(zone: Zone) -> ZoneSpeeds:
    rows: dict[str, list[SpeedRow]] = defaultdict(list)
    measured = []
    here = Node.objects.filter(zone=zone)
    on_sale = set(here.filter(status=NodeStatus.ONLINE).values_list("gpu_type_id", flat=True))
    for speed in Speed.objects.filter(zone=zone).order_by("pk"):
        if on_sale and speed.gpu_type_id not in on_sale:
            # What has left the market must not decide what others are sold at.
            continue
        rows[speed.gpu_type_id].append(
            SpeedRow(
                batch_size=speed.batch_size,
                sequence_length=speed.sequence_length,
                jobs=speed.jobs,
                samples_per_s=speed.samples_per_s,
            )
        )
        if speed.job_memory_gb is not None and speed.job_memory_gb > 0:
            measured.append(
                memory.MeasuredMemory(
                    batch_size=speed.batch_size,
                    sequence_length=speed.sequence_length,
                    gb=speed.job_memory_gb,
                )
            )
    return ZoneSpeeds(
        rows=dict(rows),
        measured_memory=tuple(measured),
        smallest_capacities=_load_smallest_capacities(zone),
    )


def reference_capacity(zone: Zone, rows: list[SpeedRow]) -> float | None:
    """Samples per slot of the zone's reference batch and length, over a full node."""
    speed = total_speed(
        rows,
        batch_size=zone.reference_batch_size,
        sequence_length=zone.reference_sequence_length,
        jobs=zone.jobs_per_node,
    )
    return None if speed is None else speed * zone.slot_s


def rates(
    *, zone: Zone, batch_size: int, sequence_length: int, speeds: ZoneSpeeds | None = None
) -> dict[str, float]:
    """Samples per slot promised to one such job, by GPU type; a missing type cannot run it.

    The promise is the job's share of a node that ``jobs_per_node`` jobs use at once.
    """
    speeds = speeds or load_zone_speeds(zone)
    promised = {}
    smallest = speeds.smallest_capacities
    weights = _find_weights(zone, batch_size, sequence_length, speeds)
    weight = max(weights.values(), default=1.0)
    for gpu_type, rows in speeds.rows.items():
        speed = total_speed(
            rows, batch_size=batch_size, sequence_length=sequence_length, jobs=zone.jobs_per_node
        )
        if speed is None or (weights and gpu_type not in weights):
            continue
        rate = speed * zone.slot_s / zone.jobs_per_node
        # A rate above a node's capacity would make the node unsaleable to this job.
        ceiling = smallest.get(gpu_type, float("inf")) / weight
        promised[gpu_type] = min(rate, ceiling)
    return promised


def work_weight(
    *, zone: Zone, batch_size: int, sequence_length: int, speeds: ZoneSpeeds | None = None
) -> float:
    """Reference samples that one sample of this batch and length stands for.

    Nodes' capacities are counted in reference samples. A job's demand and rates times this weight
    are in the same unit, so a job of long samples takes the share of a node that it really uses. It
    is the largest over the GPU types that can run such a job: on none of them is a node sold twice.
    """
    speeds = speeds or load_zone_speeds(zone)
    return max(_find_weights(zone, batch_size, sequence_length, speeds).values(), default=1.0)


def _find_weights(
    zone: Zone, batch_size: int, sequence_length: int, speeds: ZoneSpeeds
) -> dict[str, float]:
    """The weight on each GPU type; types far above the middle one cannot run such a job.

    Their nodes would make everybody else's look as slow at it as they are themselves.
    """
    weights: dict[str, float] = {}
    for gpu_type, rows in speeds.rows.items():
        speed = total_speed(
            rows, batch_size=batch_size, sequence_length=sequence_length, jobs=zone.jobs_per_node
        )
        reference = total_speed(
            rows,
            batch_size=zone.reference_batch_size,
            sequence_length=zone.reference_sequence_length,
            jobs=zone.jobs_per_node,
        )
        if speed is not None and reference is not None:
            weights[gpu_type] = reference / speed
    if not weights:
        return {}
    middle = sorted(weights.values())[(len(weights) - 1) // 2]
    return {key: weight for key, weight in weights.items() if weight <= OUTLIER_FACTOR * middle}


def model_shape(zone: Zone) -> ModelShape:
    return ModelShape(**zone.model_shape)


def memory_demand(
    *,
    zone: Zone,
    adapter: AdapterSpec,
    training: TrainingSpec,
    preference: bool = False,
    speeds: ZoneSpeeds | None = None,
) -> float:
    """GB a job takes beside the base model; see ``fleet.memory`` for the formula.

    A preference row is two sequences.
    """
    shape = model_shape(zone)
    activation_bytes = 4 if zone.dtype == "float32" else 2
    if zone.dtype == "auto":
        # ``auto`` is float32 on a CPU; the larger is safe on both.
        activation_bytes = 4
    measured = (speeds or load_zone_speeds(zone)).measured_memory
    return memory.job_memory_gb(
        shape,
        # A soft prompt adapts no projection.
        rank=0 if adapter.kind is AdapterKind.SOFT_PROMPT else adapter.rank,
        batch_size=training.batch_size * (2 if preference else 1),
        sequence_length=training.sequence_length,
        activation_bytes=activation_bytes,
        target_modules=adapter.target_modules,
        virtual_tokens=adapter.virtual_tokens,
        calibration=memory.calibration_factor(shape, measured, activation_bytes=activation_bytes),
    )


def find_node_by_api_token(token: str) -> Node | None:
    """The node that holds a bearer token."""
    return (
        Node.objects.select_related("zone", "provider")
        .filter(api_token_hash=secret_hash(token))
        .first()
    )


def silent_since(zone: Zone, now: datetime) -> datetime:
    """A node last heard of at or before this moment counts as gone."""
    return now - timedelta(seconds=HEARTBEATS_MISSED * zone.heartbeat_every_s)


def node_is_silent(node: Node, now: datetime) -> bool:
    heard = node.last_heartbeat_at or node.joined_at
    return heard <= silent_since(node.zone, now)


def find_present_status(node: Node, now: datetime) -> NodeStatus:
    """The status of a node that has not left, by what holds of it."""
    if node.suspended_at is not None:
        return NodeStatus.SUSPENDED
    if node_is_silent(node, now):
        return NodeStatus.OFFLINE
    return NodeStatus.ONLINE if node.drained_at is None else NodeStatus.DRAINING


def _load_smallest_capacities(zone: Zone) -> dict[str, float]:
    """The least capacity of each GPU type, nodes far below its middle one left out."""
    by_type: defaultdict[str, list[float]] = defaultdict(list)
    nodes = Node.objects.filter(zone=zone).exclude(status=NodeStatus.LEFT)
    for gpu_type, capacity in nodes.values_list("gpu_type_id", "compute_capacity"):
        by_type[gpu_type].append(capacity)
    return {
        gpu_type: min(
            capacity
            for capacity in found
            if capacity * OUTLIER_FACTOR >= sorted(found)[len(found) // 2]
        )
        for gpu_type, found in by_type.items()
    }
