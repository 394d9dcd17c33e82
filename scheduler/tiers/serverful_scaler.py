"""Algorithm 2: the serverful scaler, spatial actuator of the pressure.

The answer is the change of the worker count: above zero to add, below zero to release (idle
workers only, dearest first; the caller sees to that).
"""

from __future__ import annotations

import math
from typing import NamedTuple


class TierLoad(NamedTuple):
    """What is asked of the serverful tier, and what it has."""

    #: D(t, T) of the longest window, GPU seconds.
    demand_s: float
    #: I, GPUs at work or booting.
    workers: float
    #: mu, seconds of work per second of one worker.
    rate: float
    #: T, seconds.
    window_s: float
    #: p of equation 2.
    pressure: float
    #: GPUs the backlog asks for.
    waiting: float
    #: GPUs idle or booting that no job is promised.
    coming: float


def compute_worker_change(load: TierLoad) -> int:
    """Algorithm 2 with ``C = I mu T``, a scale-in of its own and a queue guard.

    Parameters
    ----------
    load : TierLoad

    Notes
    -----
    The queue guard is not in the paper: one worker per waiting job that no idle or
    booting worker covers. Demand alone leaves a job with a loose deadline waiting
    until its latest start.
    """
    each = load.rate * load.window_s
    capacity = load.workers * load.rate * load.window_s
    uncovered = max(0, math.ceil(load.waiting - load.coming))
    if load.pressure > 1.0:
        return max(uncovered, math.ceil(max(0.0, load.demand_s - capacity) / each))
    if uncovered > 0:
        return uncovered
    # Workers a waiting gang collects are not spare, however little is due.
    spare = max(0, math.floor(load.coming - load.waiting))
    return -min(spare, math.floor(max(0.0, capacity - load.demand_s) / each))
