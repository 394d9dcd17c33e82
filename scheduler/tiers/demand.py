"""Demand bound function and pressure (Allpass, section 3.2, equations 1 and 2).

As printed, equation 1 counts the whole remaining run time of a job once its deadline lies
inside the window, so a ten-hour job due in fifty hours is invisible until it is too late
(``scheduler.experiments.tiers.printed_demand``). Here it counts by the latest start: a job with
slack ``s`` and remaining work ``r`` must have ``min(r, T - s)`` seconds done within the next
``T`` seconds, a ramp that starts at ``s`` and ends at ``s + r``.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def list_window_lengths(*, step_s: float, count: int) -> Floats:
    """The windows ``step_s, 2 step_s, ..., count step_s``.

    Section 3.3 (Algorithm 1, line 9) keeps the windows whose start has passed and
    drops the future; windows here are relative to now, so nothing has to advance.
    """
    return np.arange(1, count + 1, dtype=np.float64) * step_s


def measure_demand(
    *, remaining_s: Floats, slack_s: Floats, gpus: Floats, windows_s: Floats
) -> Floats:
    """Equation 1 by latest starts: work that must be done inside each window.

    Parameters
    ----------
    remaining_s : (n,) array
        r_j, seconds left, restore included where one is due.
    slack_s : (n,) array
        Latest start minus now, seconds; a negative slack counts as none.
    gpus : (n,) array
        GPUs of the gang.
    windows_s : (w,) array
        Window lengths, seconds, rising.

    Returns
    -------
    (w,) array
        D(t, T), GPU seconds; at most ``sum(gpus) * T``.
    """
    slack = np.maximum(slack_s, 0.0)
    return _ramps(slack, gpus, windows_s) - _ramps(slack + remaining_s, gpus, windows_s)


def _ramps(starts: Floats, slopes: Floats, at: Floats) -> Floats:
    """``sum(slopes * max(0, at - starts))`` for every ``at``, by prefix sums."""
    order = np.argsort(starts, kind="stable")
    slope = np.concatenate(([0.0], np.cumsum(slopes[order])))
    offset = np.concatenate(([0.0], np.cumsum((slopes * starts)[order])))
    reached = np.searchsorted(starts[order], at, side="right")
    return at * slope[reached] - offset[reached]


def compute_pressure(demands: Floats, windows_s: Floats, capacity: float) -> float:
    """Equation 2: the largest ratio of demand to capacity over the windows.

    Parameters
    ----------
    demands, windows_s : (w,) arrays
        D(t, T) in GPU seconds and T in seconds.
    capacity : float
        C_t, GPUs at work or booting.

    Returns
    -------
    float
        Zero without demand; infinite only with demand and no capacity at all.
    """
    highest = 0.0
    for k in range(demands.shape[0]):
        if demands[k] > 0.0:
            if capacity <= 0.0:
                return math.inf
            highest = max(highest, demands[k] / (capacity * windows_s[k]))
    return highest
