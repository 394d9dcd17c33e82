"""How fast nodes are: each by its own measurements, in work units.

A zone sells each node to ``jobs_per_node`` jobs at once and promises each its share of the node's
speed, so a promise holds however full the node is; a job that is alone is faster than promised and
ends early.

**A node's speed** is the lower median of its recent measurements: what its self-test said, and what
its jobs were seen to do since. A measurement raises the speed by a bounded factor only, and one
that lowers it is taken as it is: a node that is slow or busy, or that lied in its self-test, is
sold at its real speed and does not undercut other nodes.

**A type's rate** is what one job is promised on any node of a GPU type. It follows the type's
middle node, where a node counts as often as it was measured; a newcomer cannot move it. Nodes that
cannot do as much are not sold to such jobs; faster ones are sold to more of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

#: A node that is slower than its type's middle one by more than this does not lower its rate.
OUTLIER_FACTOR = 1.5
#: Measurements of jobs that a node's speed goes by, the latest ones.
MEASUREMENTS_KEPT = 8
#: How far one measurement may raise a node's speed, as a factor.
RAISE_MAX = 2.0


@dataclass(frozen=True, slots=True)
class NodeSpeed:
    """What a type's rate is made from."""

    #: Work units per slot.
    capacity: float
    #: How often the node was measured at work.
    measurements: int
    joined_at: datetime


def bound_measurement(measured: float, *, current: float) -> float | None:
    """Give a measurement as it is stored; ``None`` when it cannot be one.

    Parameters
    ----------
    measured, current : float
        Work units a second; ``current`` is the node's speed until now.
    """
    if not 0 < measured < float("inf"):
        return None
    return min(measured, RAISE_MAX * current)


def estimate_speed(*, self_test: float, measured: Sequence[float]) -> float:
    """A node's speed in work units a second, from its self-test and its last measurements."""
    values = sorted([self_test, *measured[-MEASUREMENTS_KEPT:]])
    return values[(len(values) - 1) // 2]


def compute_type_rate(nodes: Sequence[NodeSpeed], *, jobs_per_node: int) -> float:
    """Work units per slot promised to one job on the nodes of a type, of which there is one.

    No more than the smallest node does, outliers left out, or it could not be sold.
    """
    middle = _find_middle_capacity(nodes)
    near = [node.capacity for node in nodes if node.capacity * OUTLIER_FACTOR >= middle]
    return min(middle / jobs_per_node, *near)


def _find_middle_capacity(nodes: Sequence[NodeSpeed]) -> float:
    """The capacity of the middle node, each counted as often as it was measured.

    Of two in the middle, the one that joined first.
    """
    rising = sorted(nodes, key=lambda node: node.capacity)
    total = sum(1 + node.measurements for node in rising)
    seen = 0
    for place, node in enumerate(rising):
        seen += 1 + node.measurements
        if 2 * seen == total:
            return min(node, rising[place + 1], key=lambda one: one.joined_at).capacity
        if 2 * seen > total:
            break
    return node.capacity
