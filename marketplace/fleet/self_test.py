"""What a node's self-test found out: checked, and added to the zone's speed table."""

from __future__ import annotations

import re
from datetime import datetime

from marketplace.common.errors import UserError
from marketplace.fleet import locks
from marketplace.fleet.models import GpuType, Node, NodeStatus, Speed, Zone
from marketplace.fleet.speeds import OUTLIER_FACTOR, SpeedRow, total_speed
from workers.protocol.messages import PROTOCOL_VERSION, NodeFacts, SpeedMeasurement

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_facts(zone: Zone, name: str, facts: NodeFacts) -> tuple[SpeedMeasurement, ...]:
    """The measurements that are of this zone's model.

    Raises
    ------
    UserError
        ``invalid_node``: something is missing or impossible.
    """
    if facts.protocol_version != PROTOCOL_VERSION:
        raise invalid_node(
            f"The node speaks protocol {facts.protocol_version}, the market "
            f"{PROTOCOL_VERSION}. Install the same version on both."
        )
    if not _NAME.fullmatch(name):
        raise invalid_node("A node's name is 1 to 64 letters, digits, dots, dashes or underscores.")
    if not _NAME.fullmatch(facts.gpu_type):
        raise invalid_node(f"{facts.gpu_type[:80]!r} does not name a GPU type.")
    if facts.memory_gb <= 0:
        raise invalid_node("The self-test found no memory.")
    measured = tuple(row for row in facts.speeds if row.base_model == zone.base_model_name)
    if not measured:
        raise invalid_node(
            f"The self-test measured no speed of {zone.base_model_name}. Run it again."
        )
    for row in measured:
        if min(row.batch_size, row.sequence_length, row.jobs) < 1 or row.samples_per_s <= 0:
            raise invalid_node(
                "The self-test names a speed, batch, length or count that is not positive."
            )
        if max(row.batch_size, row.sequence_length, row.jobs) > 1_000_000:
            raise invalid_node("The self-test names a batch, length or count beyond a million.")
        if min(row.job_memory_gb, row.base_memory_gb) < 0:
            raise invalid_node("The self-test names a negative amount of memory.")
        if row.job_memory_gb > facts.memory_gb:
            raise invalid_node("The self-test names more memory for a job than the machine has.")
    return measured


def memory_for_sale(zone: Zone, facts: NodeFacts, measured: tuple[SpeedMeasurement, ...]) -> float:
    """The node's GB, less what its base model takes beyond the zone's figure."""
    excess = max(0.0, max(row.base_memory_gb for row in measured) - zone.base_memory_gb)
    memory_gb = facts.memory_gb - excess
    if memory_gb <= zone.base_memory_gb:
        raise invalid_node(
            f"{facts.memory_gb:g} GB leave no room for a job beside {zone.base_model_name}, which "
            f"takes {zone.base_memory_gb + excess:g} GB. List a node with more memory."
        )
    return memory_gb


def record_speeds(
    *,
    zone: Zone,
    gpu_type: GpuType,
    node_id: str | None,
    speeds: tuple[SpeedMeasurement, ...],
    now: datetime,
) -> None:
    """Add a self-test to the table: the slowest node of a type sets its promise.

    One far from what the type's other nodes measured counts for its own node only, whose capacity
    it sets: a slow or lying node is not sold, and affects no other. The first node of a type,
    and one that is alone in it, sets the type's rows again.
    """
    is_alone = not (
        Node.objects.filter(zone=zone, gpu_type=gpu_type)
        .exclude(pk=node_id)
        .exclude(status=NodeStatus.LEFT)
        .exists()
    )
    known = Speed.objects.filter(zone=zone, gpu_type=gpu_type)
    if is_alone:
        known.delete()
    elif not all(_is_alike(row, list(known)) for row in speeds):
        return
    # In one order, so that two nodes that join at once cannot block each other.
    for row in sorted(speeds, key=lambda row: (row.batch_size, row.sequence_length, row.jobs)):
        speed, created = Speed.objects.get_or_create(
            zone=zone,
            gpu_type=gpu_type,
            batch_size=row.batch_size,
            sequence_length=row.sequence_length,
            jobs=row.jobs,
            defaults={
                "samples_per_s": row.samples_per_s,
                "measured_samples_per_s": row.samples_per_s,
                "job_memory_gb": row.job_memory_gb,
                "base_memory_gb": row.base_memory_gb,
                "updated_at": now,
            },
        )
        if created:
            continue
        speed = locks.lock_speed(speed.pk)
        speed.samples_per_s = min(speed.samples_per_s, row.samples_per_s)
        speed.measured_samples_per_s = min(
            speed.measured_samples_per_s or row.samples_per_s, row.samples_per_s
        )
        speed.job_memory_gb = max(speed.job_memory_gb or 0.0, row.job_memory_gb)
        speed.base_memory_gb = max(speed.base_memory_gb or 0.0, row.base_memory_gb)
        speed.updated_at = now
        speed.save()


def _is_alike(row: SpeedMeasurement, known: list[Speed]) -> bool:
    """Whether a measurement is near what is known of its type, in speed and in memory."""
    table = [SpeedRow(k.batch_size, k.sequence_length, k.jobs, k.samples_per_s) for k in known]
    speed = total_speed(
        table, batch_size=row.batch_size, sequence_length=row.sequence_length, jobs=row.jobs
    )
    pairs = [] if speed is None else [(row.samples_per_s, speed)]
    same = (row.batch_size, row.sequence_length)
    pairs += [
        (row.job_memory_gb, k.job_memory_gb)
        for k in known
        if (k.batch_size, k.sequence_length) == same and k.job_memory_gb and row.job_memory_gb
    ]
    return all(max(pair) <= OUTLIER_FACTOR * min(pair) for pair in pairs)


def invalid_node(message: str) -> UserError:
    return UserError("invalid_node", message)
