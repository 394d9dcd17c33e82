"""Context switches of nodes: from the last step of one job to the first step of the next.

The base model stays resident and the next job is read and attached while others still step, so most
of its preparation costs no time. Nodes report both in the results of their slices.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from marketplace.jobs.models import Slice

#: Slices of a node that are looked at, the latest ones.
SLICES_MAX = 100
#: Of a slice's result, in the order of ``ReportedSlice``.
_TIMES = ("first_step_at", "last_step_at", "attach_s")


@dataclass(frozen=True, slots=True)
class ReportedSlice:
    """When a slice stepped, in Unix seconds."""

    job_id: str
    #: The node could know of it from then on.
    opened_at: float
    first_step_at: float
    last_step_at: float
    attach_s: float


@dataclass(frozen=True, slots=True)
class ContextSwitches:
    """A node's latest switches."""

    count: int
    #: Seconds without a step, in the middle.
    median_s: float
    #: Of the next jobs' preparation, what others' steps hid.
    hidden_share: float


def measure_switches(node_ids: Collection[str]) -> dict[str, ContextSwitches]:
    """The context switches in the latest slices of nodes that had any."""
    by_node: defaultdict[str, list[ReportedSlice]] = defaultdict(list)
    latest = [
        Slice.objects.filter(node=node_id, closed_at__isnull=False)
        .order_by("-closed_at")
        .values_list("node_id", "job_id", "opened_at", "result")[:SLICES_MAX]
        for node_id in node_ids
    ]
    # One statement: each part of it reads no more of a node than is looked at.
    rows: Any = Slice.objects.none().union(*latest, all=True)
    for node_id, job_id, opened_at, result in rows:
        times: list[Any] = [(result or {}).get(name) for name in _TIMES]
        if None not in times and times[0] > 0 and times[1] > 0:
            by_node[node_id].append(ReportedSlice(job_id, opened_at.timestamp(), *times))
    found = {node_id: summarize_switches(slices) for node_id, slices in by_node.items()}
    return {node_id: switches for node_id, switches in found.items() if switches is not None}


def summarize_switches(slices: Sequence[ReportedSlice]) -> ContextSwitches | None:
    """Switches between a node's slices; ``None`` without any."""
    switches = list(_list_switches(slices))
    if not switches:
        return None
    attach_s = sum(slice_.attach_s for slice_, _ in switches)
    waited_s = sum(min(pause_s, slice_.attach_s) for slice_, pause_s in switches)
    return ContextSwitches(
        count=len(switches),
        median_s=statistics.median(pause_s for _, pause_s in switches),
        hidden_share=1.0 - waited_s / attach_s if attach_s > 0 else 1.0,
    )


def _list_switches(slices: Sequence[ReportedSlice]) -> Iterator[tuple[ReportedSlice, float]]:
    """Each slice that came after another job's, and the seconds between their steps.

    Time before the node knew of the slice is no part of the switch: it had nothing to do.
    """
    for slice_ in slices:
        earlier = [
            other.last_step_at
            for other in slices
            if other.job_id != slice_.job_id and other.first_step_at < slice_.first_step_at
        ]
        if earlier:
            free_at = max(max(earlier), slice_.opened_at)
            yield slice_, max(0.0, slice_.first_step_at - free_at)
