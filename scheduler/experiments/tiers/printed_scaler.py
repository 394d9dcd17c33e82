"""Algorithm 2 of Allpass as printed, beside which ``scheduler.tiers`` is tested."""

from __future__ import annotations

import math


def compute_printed_workers_change(
    demand_s: float, workers: float, rate: float, window_s: float, pressure: float
) -> int:
    """Algorithm 2 letter by letter.

    Its two errors are kept: the capacity ``C = I mu`` lacks the factor T, so the
    demand is bought again at every tick; and the shortfall ``max(0, D - C)`` also
    feeds the scale-in, so a pool without demand is never released.

    Parameters
    ----------
    demand_s : float
        D(t, T) of the longest window, GPU seconds.
    workers : float
        I, GPUs at work or booting.
    rate : float
        mu, seconds of work per second of one worker.
    window_s : float
        T, seconds.
    pressure : float
        p of equation 2.
    """
    shortfall = max(0.0, demand_s - workers * rate)
    if pressure > 1.0:
        return math.ceil(shortfall / (rate * window_s))
    if pressure < 1.0:
        return -math.floor(shortfall / (rate * window_s))
    return 0
