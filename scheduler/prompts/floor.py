"""How many warm GPUs of a base model are worth their idle time (newsvendor rule)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def compute_newsvendor_floor(
    demand_gpus: Sequence[int], *, shortage: float, idle: float, least: int, most: int
) -> int:
    """Choose the floor of a warm pool.

    Parameters
    ----------
    demand_gpus : sequence of int
        GPUs that jobs held or waited for, at evenly spaced moments of the recent past.
    shortage : float
        What a GPU missing for one unit of time costs: the start of a cold one and what late
        jobs are refunded.
    idle : float
        What a warm GPU without work costs in the same time.
    least, most : int
        The operator's bounds; ``least`` without any history.

    Returns
    -------
    int
        The smallest floor that covers demand at least a share ``shortage / (shortage +
        idle)`` of the time, within the bounds.

    Raises
    ------
    ValueError
        For costs that are not above zero or bounds that do not rise.

    References
    ----------
    Arrow, Harris and Marschak (1951), Optimal inventory policy. Not in the paper, whose pools
    go down to nothing after a minute.
    """
    if not (shortage > 0 and idle > 0):
        raise ValueError(f"costs must be above zero, got {shortage} and {idle}")
    if not 0 <= least <= most:
        raise ValueError(f"bounds must rise from zero, got {least} and {most}")
    if not demand_gpus:
        return least
    share = shortage / (shortage + idle)
    wanted = np.quantile(np.asarray(demand_gpus), share, method="inverted_cdf")
    return int(min(most, max(least, wanted)))
