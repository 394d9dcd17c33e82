"""What a node's self-test found out: checked, and turned into what the node is sold as."""

from __future__ import annotations

import math
import re

from marketplace.common.errors import UserError
from marketplace.fleet.memory import size_for_jobs
from marketplace.fleet.models import Node, Zone
from marketplace.fleet.releases import agree_on_version
from workers.protocol.job_spec import WorkCosts
from workers.protocol.model_shape import BasePart, load_shape
from workers.protocol.node_facts import NodeFacts, SpeedMeasurement, WorkMeasurement
from workers.protocol.pass_bytes import PACK_TOKENS
from workers.protocol.wire import from_json
from workers.protocol.work import PARTS, RowLengths, count_row_units

_SAMPLES_PER_S_MAX = 1e9
#: Of work measurements; so many tokens take a machine years.
_COUNT_MAX = 10**15
#: Of the base model, where the node's release tells it.
_SHA256 = re.compile(r"([0-9a-f]{64})?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_facts(zone: Zone, name: str, facts: NodeFacts) -> tuple[SpeedMeasurement, ...]:
    """The measurements that are of this zone's model.

    Raises
    ------
    UserError
        ``invalid_node``: something is missing or impossible; ``version_not_spoken``.
    """
    agree_on_version(least=facts.protocol_version, most=facts.protocol_version)
    check_name(name)
    if not _NAME.fullmatch(facts.gpu_type):
        raise refuse_node(f"{facts.gpu_type[:80]!r} does not name a GPU type.")
    if facts.device not in PACK_TOKENS:
        raise refuse_node(f"{facts.device[:80]!r} is no kind of device; there are cpu and cuda.")
    if facts.memory_gb <= 0:
        raise refuse_node("The self-test found no memory.")
    measured = tuple(row for row in facts.speeds if row.base_model == zone.base_model_name)
    if not measured:
        raise refuse_node(
            f"The self-test measured no speed of {zone.base_model_name}. Run it again."
        )
    for row in measured:
        if min(row.batch_size, row.sequence_length, row.jobs) < 1 or row.samples_per_s <= 0:
            raise refuse_node(
                "The self-test names a speed, batch, length or count that is not positive."
            )
        if max(row.batch_size, row.sequence_length, row.jobs) > 1_000_000:
            raise refuse_node("The self-test names a batch, length or count beyond a million.")
        if row.samples_per_s > _SAMPLES_PER_S_MAX:
            raise refuse_node("The self-test names more samples a second than a machine trains.")
        if not _SHA256.fullmatch(row.base_sha256) or row.base_sha256 != measured[0].base_sha256:
            raise refuse_node("The self-test names no hash of the base model, or several.")
        if row.parts != measured[0].parts or not _are_parts(zone, facts, row.parts):
            raise refuse_node("The self-test divides the base model in a way that cannot be.")
        if min(row.job_memory_gb, row.base_memory_gb) < 0:
            raise refuse_node("The self-test names a negative amount of memory.")
        if row.job_memory_gb > facts.memory_gb:
            raise refuse_node("The self-test names more memory for a job than the machine has.")
    return measured


def _are_parts(zone: Zone, facts: NodeFacts, parts: tuple[BasePart, ...]) -> bool:
    """Whether a group of the machine's devices can have the base model like this."""
    devices = facts.gpu_count if facts.device == "cuda" else facts.cores
    return not parts or (
        len(parts) <= devices
        and all(part.blocks > 0 and 0 < part.base_gb < math.inf for part in parts)
        and sum(part.blocks for part in parts) == load_shape(zone.model_shape).layers
    )


def check_name(name: str) -> None:
    """Refuse a name that no node may have.

    Raises
    ------
    UserError
        ``invalid_node``.
    """
    if not _NAME.fullmatch(name):
        raise refuse_node("A node's name is 1 to 64 letters, digits, dots, dashes or underscores.")


def select_work_measurements(zone: Zone, facts: NodeFacts) -> tuple[WorkMeasurement, ...]:
    """The timed steps of this zone's model that can be.

    Raises
    ------
    UserError
        ``invalid_node``: one of them cannot.
    """
    found = tuple(row for row in facts.work if row.base_model == zone.base_model_name)
    for row in found:
        least = min(row.steps, row.sequences, row.tokens, row.token_pairs)
        most = max(row.steps, row.sequences, row.tokens, row.token_pairs, row.trained_tokens)
        times = (row.seconds, row.forward_seconds)
        if least < 1 or row.trained_tokens < 0 or most > _COUNT_MAX:
            raise refuse_node("The self-test timed steps whose counts cannot be.")
        if not all(0 < seconds < math.inf for seconds in times):
            raise refuse_node("The self-test timed steps in a time that is not positive.")
    return found


def compute_memory_for_sale(
    zone: Zone, facts: NodeFacts, measured: tuple[SpeedMeasurement, ...]
) -> float:
    """The zone's figure for the base model, and what the node has for jobs.

    What base and pack take is not for sale; the base is counted as it was measured where that is
    more.
    """
    base_gb = max(zone.base_memory_gb, *(row.base_memory_gb for row in measured))
    jobs_gb = size_for_jobs(
        zone,
        device=facts.device,
        limit_gb=facts.memory_gb,
        base_gb=base_gb,
        host_gb=facts.host_gb,
        parts=measured[0].parts,
    )
    if jobs_gb is None:
        raise refuse_node(
            f"{facts.memory_gb:g} GB are too little: {zone.base_model_name} takes {base_gb:g} GB, "
            "and a job and a pack of rows need room beside it. List a node with more memory."
        )
    return zone.base_memory_gb + jobs_gb


def find_self_test_speed(
    zone: Zone, measured: tuple[SpeedMeasurement, ...], costs: WorkCosts
) -> float:
    """Work units a second that the machine did with ``jobs_per_node`` jobs, or nearly so many.

    The middle one of what was measured with the most jobs.
    """
    usable = [row for row in measured if row.jobs <= zone.jobs_per_node]
    if not usable:
        raise refuse_node(
            f"The self-test measured no speed with {zone.jobs_per_node} jobs or fewer."
        )
    jobs = max(row.jobs for row in usable)
    speeds = sorted(_count_units_per_s(row, costs) for row in usable if row.jobs == jobs)
    return speeds[(len(speeds) - 1) // 2]


def compare_job_counts(
    measured: tuple[SpeedMeasurement, ...], costs: WorkCosts, *, jobs: int, full: int
) -> float:
    """How much faster the machine is with ``full`` jobs than with ``jobs``: from 1 to 2.

    By the self-test's measurements that are nearest to those counts.
    """
    speeds: dict[int, list[float]] = {}
    for row in measured:
        speeds.setdefault(row.jobs, []).append(_count_units_per_s(row, costs))
    if not speeds:
        return 1.0
    few, many = (max(speeds[min(speeds, key=lambda n: abs(n - count))]) for count in (jobs, full))
    return min(2.0, max(1.0, many / few))


def read_measured_speeds(node: Node) -> tuple[SpeedMeasurement, ...]:
    """The rows of the node's last self-test that are of its zone's model."""
    facts = from_json(NodeFacts, node.facts) if node.facts else None
    rows = () if facts is None else facts.speeds
    return tuple(row for row in rows if row.base_model == node.zone.base_model_name)


def _count_units_per_s(row: SpeedMeasurement, costs: WorkCosts) -> float:
    """All of a measurement's rows are full, and all of their tokens trained."""
    rows = RowLengths.of([[(row.sequence_length, row.sequence_length - 1)]])
    units = float(count_row_units(costs, rows, even=True)[0])
    return row.samples_per_s * (units + costs.step / PARTS / row.batch_size)


def refuse_node(message: str) -> UserError:
    return UserError("invalid_node", message)
