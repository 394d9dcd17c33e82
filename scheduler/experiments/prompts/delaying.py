"""DelaySchedulable: can a job wait for warm GPUs that running jobs will release?

Section 4.4.2, Algorithm 2, lines 23-35.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.prompts.jobs import TOLERANCE_S, Course, find_fewest_gpus, run_s
from scheduler.prompts.rules import LaneRules


def delay_schedulable(
    free_at_s: Sequence[float], course: Course, until_s: float, rules: LaneRules
) -> tuple[tuple[float, ...], int] | None:
    """Find the smallest gang of the pool that ends in time, and take it.

    Parameters
    ----------
    free_at_s : sequence of float
        E_l, rising.
    course : Course
        How the job will run.
    until_s : float
        Its deadline, on the clock of ``free_at_s``.
    rules : LaneRules
        Costs and largest size of a gang.

    Returns
    -------
    free_at_s : tuple of float
        E_l with all GPUs of the gang taken until the job ends.
    gpus : int
        Size of the gang. The whole result is ``None`` when no gang ends in time.

    Notes
    -----
    Departures from the text: line 29 (``k < len``) leaves out the last GPU of the pool, line
    30 marks one GPU of k and stores a length among timestamps.
    """
    gpus = find_fewest_gpus(course, until_s, free_at_s, rules)
    if not gpus:
        return None
    return take_gang(free_at_s, gpus, free_at_s[gpus - 1] + run_s(course, gpus, rules)), gpus


def delay_schedulable_printed(
    free_at_s: Sequence[float], course: Course, slo_s: float, now_s: float, rules: LaneRules
) -> tuple[float, ...] | None:
    """Lines 23-35 letter by letter.

    Parameters
    ----------
    free_at_s, course, rules
        As in :func:`delay_schedulable`, but E_l may be in any order.
    slo_s : float
        T_slo.
    now_s : float
        T_cur.

    Returns
    -------
    tuple of float
        E_l after line 31, with one length among its timestamps; ``None`` for False.
    """
    times = sorted(free_at_s)
    size = 1

    def ends_in_s(k: int) -> float:
        return run_s(course, k, rules) - now_s + times[k - 1]

    while size <= len(times) and ends_in_s(size) > slo_s + TOLERANCE_S:
        size += 1
    if size < len(times) and ends_in_s(size) <= slo_s + TOLERANCE_S:
        times[size - 1] = ends_in_s(size)
        return tuple(sorted(times))
    return None


def take_gang(free_at_s: Sequence[float], gpus: int, end_s: float) -> tuple[float, ...]:
    """E_l after the ``gpus`` GPUs that are free first are taken until ``end_s``."""
    return tuple(sorted((*free_at_s[gpus:], *([end_s] * gpus))))
