"""How many iterations a job needs, alone or merged (Ymir, equations 2 and 4)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from scheduler.experiments.merging.loss_curve import LossCurve

#: Drop of the normalised loss below which training has converged (equation 2).
CONVERGED_DROP = 0.001
#: No job is taken to run longer than this.
MOST_ITERATIONS = 1 << 40


def compute_printed_iterations(curve: LossCurve, *, drop: float = CONVERGED_DROP) -> int:
    """Equation 2 read literally: the first k that minimises an indicator.

    The indicator is smallest where the curve still drops, so the answer is the first
    iteration at which training has *not* converged: 1 for nearly every curve.
    """
    peak = _steepest(curve, 1.0)
    if _drop(curve, peak, 1.0) <= drop:
        return 1
    return _first(1, peak, lambda k: _drop(curve, k, 1.0) > drop)


def compute_converged_iterations(
    curve: LossCurve, *, drop: float = CONVERGED_DROP, unit: float = 1.0
) -> int:
    """Iterations until every further drop is at most ``drop`` (equation 2, repaired).

    Parameters
    ----------
    curve : LossCurve
    drop : float
        Of the normalised loss, within one unit.
    unit : float
        Iterations over which a drop is measured. Per iteration, as printed, a long job
        with small steps has "converged" at its first; one epoch, ``rows / batch``,
        makes the rule independent of the batch.

    Returns
    -------
    int
        At least 1.

    Raises
    ------
    ValueError
        When the curve does not converge: no drop this small within 2**40 iterations.
    """
    if drop <= 0 or unit <= 0:
        raise ValueError("drop and unit must be above zero")
    peak = _steepest(curve, unit)
    if _drop(curve, peak, unit) <= drop:
        return 1
    if _drop(curve, MOST_ITERATIONS, unit) > drop:
        raise ValueError("the curve does not converge; profile the job for longer")
    return _first(peak, MOST_ITERATIONS, lambda k: _drop(curve, k, unit) <= drop)


def compute_spatial_iterations(
    *,
    first: float,
    second: float,
    first_batch: float,
    second_batch: float,
    first_rows: float,
    second_rows: float,
) -> float:
    """Iterations of two tasks tuned together (equation 4).

    The task that needs more epochs decides; an epoch of both has the rows of both in
    batches as large as both.

    Parameters
    ----------
    first, second : float
        Iterations of each with its merged loss curve.
    first_batch, second_batch, first_rows, second_rows : float
        Global batch M and training rows D of each.
    """
    epochs = max(first * first_batch / first_rows, second * second_batch / second_rows)
    return epochs * (first_rows + second_rows) / (first_batch + second_batch)


def _drop(curve: LossCurve, k: int, unit: float) -> float:
    now, later = curve.at(np.array([float(k), k + unit]))
    return float(now - later)


def _steepest(curve: LossCurve, unit: float) -> int:
    """Where the loss drops most within one unit; drops rise up to there and fall from there on.

    The slope is steepest where L'' = 0: 3 b3^2 k^2 + 3 b3 b2 k + b2^2 - b3 b1 = 0. The
    steepest unit begins at most one unit before.
    """
    b3, b2, b1 = curve.square, curve.linear, curve.constant
    if b3 <= 0 or b2 * b2 >= b3 * b1:
        return 1
    root = (-3 * b2 + math.sqrt(9 * b2 * b2 + 12 * (b3 * b1 - b2 * b2))) / (6 * b3)
    low, high = max(1, math.floor(root - unit)), max(1, math.ceil(root))
    return _first(low, high, lambda k: _drop(curve, k + 1, unit) <= _drop(curve, k, unit))


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """First number from ``low`` to ``high`` at which a monotone condition holds."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
