"""Gangs of the live lane: the fewest seats of one node that end a job in time.

Algorithms 1 and 2 of the paper count whole GPUs, any of which may join a gang. What the live lane
buys are places of jobs on nodes, and a node's devices work on all its jobs alike. So a gang is
several places of one node, and what it gains is neighbours that are not there: of a node with ``p``
places, a job on ``k`` of them has at most ``p - k`` neighbours and gets ``1 / (p - k + 1)`` of the
node, where one place gets ``1 / p``. With all of them it has all of the node's devices to itself.
That holds whatever the neighbours do; gangs over several nodes are left out, since places there
promise nothing of the kind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.prompts.jobs import TOLERANCE_S


@dataclass(frozen=True, slots=True)
class GangRules:
    """How a job's run depends on its seats."""

    #: Seats of one job, at most; 1: no gangs.
    most: int
    #: Jobs that a node takes at once, at most.
    places: int
    #: Of a run, the seconds that no gang shortens.
    fixed_s: float

    def __post_init__(self) -> None:
        if not 1 <= self.most <= self.places:
            raise ValueError(f"a gang has 1 to {self.places} seats, got {self.most}")
        if not self.fixed_s >= 0:
            raise ValueError(f"fixed_s must not be below zero, got {self.fixed_s}")


@dataclass(frozen=True, slots=True)
class FoundGang:
    """Seats of one node for one job."""

    seats: tuple[str, ...]
    start_s: float
    end_s: float


def compute_gang_run_s(work_s: float, seats: int, rules: GangRules) -> float:
    """Bound the seconds that a job runs on a number of seats of one node.

    Parameters
    ----------
    work_s : float
        Seconds on one seat, ``fixed_s`` included.
    seats : int
        From 1 to ``rules.places``.
    rules : GangRules
    """
    if seats == 1 or work_s <= rules.fixed_s:
        return work_s
    shared_s = work_s - rules.fixed_s
    return rules.fixed_s + shared_s * (rules.places - seats + 1) / rules.places


def find_fewest_seats(work_s: float, within_s: float, rules: GangRules) -> int:
    """Find the fewest idle seats of one node that end a job within a time limit; 0: none do."""
    for seats in range(1, rules.most + 1):
        if compute_gang_run_s(work_s, seats, rules) <= within_s + TOLERANCE_S:
            return seats
    return 0


def compute_held_seat_s(work_s: float, slo_s: float, rules: GangRules) -> float:
    """Seconds of seats that an SLO is charged for: those that the fewest seats hold.

    Parameters
    ----------
    work_s, slo_s : float
        Seconds on one seat, and within which the job is to be done.
    rules : GangRules

    Returns
    -------
    float
        No gang counts for less than a smaller one, so that no SLO costs more than a shorter one:
        a job that has all of a node holds it more briefly than one that has half.
    """
    most = find_fewest_seats(work_s, slo_s, rules) or rules.most
    return max(seats * compute_gang_run_s(work_s, seats, rules) for seats in range(1, most + 1))


def find_gang(
    work_s: float,
    due_s: float,
    seats: Sequence[tuple[str, str, float]],
    now_s: float,
    *,
    rules: GangRules,
    round_s: float,
) -> FoundGang | None:
    """Find the fewest seats of one node that end a job in time, behind all that waits there.

    Parameters
    ----------
    work_s : float
        Seconds on one seat.
    due_s : float
        The job's deadline.
    seats : sequence of (str, str, float)
        Each seat, its node, and when it is free of everything promised.
    now_s : float
    rules : GangRules
    round_s : float
        What follows on a seat begins later by at least this.

    Returns
    -------
    FoundGang or None
        Of two or more seats; among nodes with gangs of one size the one that ends first.
    """
    by_node: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
    for name, node, free_s in seats:
        by_node[node].append((free_s if free_s <= now_s else free_s + round_s, name))
    found: list[tuple[int, float, str, float]] = []
    for node, times in by_node.items():
        times.sort()
        for size in range(2, min(rules.most, len(times)) + 1):
            start_s = max(now_s, times[size - 1][0])
            end_s = start_s + compute_gang_run_s(work_s, size, rules)
            if end_s <= due_s + TOLERANCE_S:
                found.append((size, end_s, node, start_s))
                break
    if not found:
        return None
    size, end_s, node, start_s = min(found)
    # Of those free by then, the ones that came free last: idle ones can go back.
    free = sorted(one for one in by_node[node] if one[0] <= start_s)[-size:]
    return FoundGang(tuple(sorted(name for _, name in free)), start_s, end_s)
