"""Self-tests that a machine can hardly have made: a node that sent one waits for an operator.

Figures are bounds, not estimates: a real machine reaches a third of its peak in training.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median

from marketplace.fleet.models import Node, NodeStatus, Zone
from marketplace.fleet.selectors import get_model_shape
from workers.protocol.node_facts import NodeFacts, SpeedMeasurement
from workers.protocol.wire import from_json

#: The most that one device of a kind does: dense 16-bit operations a second, in millions of
#: millions, by NVIDIA's data sheets.
PEAK_TFLOPS = {
    "B300": 2500,
    "B200": 2500,
    "GB200": 2500,
    "GH200": 990,
    "H200": 990,
    "H100": 990,
    "A100": 312,
    "A800": 312,
    "A40": 150,
    "A30": 165,
    "A16": 18,
    "A10": 125,
    "A10G": 125,
    "L40S": 366,
    "L40": 181,
    "L4": 121,
    "T4": 65,
    "V100": 125,
    "P100": 22,
    "RTX-5090": 419,
    "RTX-4090": 331,
    "RTX-3090": 142,
    "RTX-A6000": 155,
}
#: Of a kind that is not listed: no single device does more yet.
PEAK_UNKNOWN_TFLOPS = 2500.0
#: Of one core of a CPU, with matrix instructions.
PEAK_CORE_TFLOPS = 6.0
#: Operations for a token and a weight: one pass forward and one back through frozen weights.
OPERATIONS = 4
#: GB of one device beyond which nothing is built yet, and of a core's share of a machine.
MEMORY_MOST_GB, MEMORY_CORE_GB = 300.0, 64.0
#: Cores of the largest machines that are built.
CORES_MOST = 1024
#: A GPU is at most this many times as fast as the median of its kind in the zone.
FASTER_MOST = 3.0


def find_impossible(
    zone: Zone, facts: NodeFacts, measured: Sequence[SpeedMeasurement]
) -> str | None:
    """Say what of a self-test is beyond its device, in a sentence; ``None``: nothing is."""
    devices = _count_devices(facts, measured)
    memory_gb = devices * (MEMORY_MOST_GB if facts.device == "cuda" else MEMORY_CORE_GB)
    if facts.memory_gb > memory_gb:
        return (
            f"Its self-test found {facts.memory_gb:,.0f} GB, and such a machine has"
            f" {memory_gb:,.0f} GB at most."
        )
    peak = devices * _find_peak_tflops(facts)
    fastest = max(row.samples_per_s * row.sequence_length for row in measured)
    reached = fastest * _count_weights(zone) * OPERATIONS / 1e12
    if reached > peak:
        return (
            f"Its self-test would take {reached:,.0f} TFLOP/s, and its device does"
            f" {peak:,.0f} at most."
        )
    return None


def find_outlier(
    zone: Zone,
    facts: NodeFacts,
    measured: Sequence[SpeedMeasurement],
    *,
    speed: float,
    node: Node,
) -> str | None:
    """Say so where a node's GPU is far faster than the zone's others of its kind.

    All CPUs are one kind, so nothing is said of them.
    """
    if facts.device != "cuda":
        return None
    others = Node.objects.filter(zone=zone, gpu_type=facts.gpu_type).exclude(pk=node.pk)
    trusted = others.exclude(status__in=[NodeStatus.SUSPENDED, NodeStatus.LEFT])
    known = [
        speed_of / _count_devices(told := from_json(NodeFacts, stored), told.speeds)
        for speed_of, stored in trusted.values_list("self_test_speed", "facts")
        if speed_of and stored
    ]
    if not known:
        return None
    faster = speed / _count_devices(facts, measured) / median(known)
    if faster <= FASTER_MOST:
        return None
    return f"Its self-test is {faster:.1f} times as fast as the zone's other {facts.gpu_type}."


def _count_devices(facts: NodeFacts, measured: Sequence[SpeedMeasurement]) -> int:
    """GPUs that hold a part of the base, or cores.

    How many GPUs the machine has is not asked: who says a thousand would be bound by nothing.
    """
    if facts.device != "cuda":
        return min(CORES_MOST, max(1, facts.cores))
    return max((len(row.parts) for row in measured), default=0) or 1


def _find_peak_tflops(facts: NodeFacts) -> float:
    if facts.device != "cuda":
        return PEAK_CORE_TFLOPS
    # ``A100-80GB``: the kind, then what memory it has.
    kind = re.sub(r"-\d+GB$", "", facts.gpu_type).upper()
    named = [name for name in PEAK_TFLOPS if re.search(rf"(^|-){name}($|-)", kind)]
    return PEAK_TFLOPS[max(named, key=len)] if named else PEAK_UNKNOWN_TFLOPS


def _count_weights(zone: Zone) -> int:
    """Weights that every token goes through, those that adapters sit on: a lower bound."""
    parts = get_model_shape(zone).parts
    return sum(part.inputs * part.outputs * len(part.blocks) for part in parts)
