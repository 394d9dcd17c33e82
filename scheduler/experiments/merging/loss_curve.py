"""The loss curve of a job, fitted to the first losses (Ymir, equation 3)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Floors tried on the coarse grid, and refinements around the best of them.
GRID, REFINEMENTS = 65, 5
#: Sets of coefficients that may differ from zero.
ACTIVE_SETS = tuple(s for size in (1, 2, 3) for s in combinations(range(3), size))


@dataclass(frozen=True, slots=True)
class LossCurve:
    """``L(k) = 1 / (square k^2 + linear k + constant) + floor``, none below zero."""

    square: float
    linear: float
    constant: float
    floor: float

    def at(self, iterations: Floats) -> Floats:
        """Losses by the number of iterations done."""
        k = iterations
        return 1.0 / (self.square * k * k + self.linear * k + self.constant) + self.floor

    def scaled(self, gain: float) -> LossCurve:
        """``L / (1 + gain)``, the paper's curve of a merged task (section 4.2).

        It shrinks the iterations by about ``1 / sqrt(1 + gain)`` only: the drop at k goes
        with 1 / k^2, and scaling the loss scales the drop.

        Raises
        ------
        ValueError
            For a gain of -1 or below, which would turn the curve over.
        """
        if not gain > -1:
            raise ValueError(f"a gain must be above -1, got {gain}")
        by = 1.0 + gain
        return LossCurve(self.square * by, self.linear * by, self.constant * by, self.floor / by)


def fit_loss_curve(iterations: Floats, losses: Floats) -> LossCurve:
    """Fit equation 3 by non-negative least squares.

    For a given floor the curve is linear in the other three: ``1 / (L - floor)`` is a
    polynomial. Residuals there are weighted with ``(L - floor)^2``, which makes them
    residuals of the loss to first order. The floor is searched on a grid that is
    refined around its best point; floors are compared by the squared error of the loss.

    Parameters
    ----------
    iterations : ndarray
        Increasing, from 1 on, ``[S]``, at least four.
    losses : ndarray
        Training losses, above zero, ``[S]``. The paper normalises them to the largest.

    Raises
    ------
    ValueError
        For fewer than four points, or values that are not finite and above zero.
    """
    if iterations.shape != losses.shape or iterations.ndim != 1 or len(losses) < 4:
        raise ValueError("a curve needs at least four losses, each with its iteration")
    if not (np.isfinite(iterations).all() and np.isfinite(losses).all()):
        raise ValueError("iterations and losses must be finite")
    if losses.min() <= 0 or iterations[0] < 1 or np.diff(iterations).min() <= 0:
        raise ValueError("losses must be above zero, iterations increasing from 1 on")
    low, high = 0.0, float(losses.min()) * (1.0 - 1e-6)
    best, best_error = _fit_above(iterations, losses, 0.0)
    for _ in range(REFINEMENTS):
        floors = np.linspace(low, high, GRID)
        for floor in floors:
            curve, error = _fit_above(iterations, losses, float(floor))
            if error < best_error:
                best, best_error = curve, error
        step = float(floors[1] - floors[0])
        low, high = max(low, best.floor - step), min(high, best.floor + step)
    return best


def _fit_above(iterations: Floats, losses: Floats, floor: float) -> tuple[LossCurve, float]:
    above = losses - floor
    weight = above * above
    # Columns of one size, so that the squares of iterations do not drown the rest.
    largest = float(iterations[-1])
    k = iterations / largest
    columns = np.stack([k * k, k, np.ones_like(k)], axis=1) * weight[:, None]
    wanted = weight / above
    found = _nonnegative(columns, wanted)
    curve = LossCurve(
        float(found[0]) / largest**2, float(found[1]) / largest, float(found[2]), floor
    )
    miss = curve.at(iterations) - losses
    return curve, float(miss @ miss)


def _nonnegative(columns: Floats, wanted: Floats) -> Floats:
    """Non-negative least squares of three columns, exact: every set is tried."""
    gram, right = columns.T @ columns, columns.T @ wanted
    best, best_error = np.zeros(3), np.inf
    for active in ACTIVE_SETS:
        index = list(active)
        part = gram[np.ix_(index, index)]
        if np.linalg.cond(part) > 1e14:
            continue
        solved = np.linalg.solve(part, right[index])
        if solved.min() < 0:
            continue
        trial = np.zeros(3)
        trial[index] = solved
        error = float(trial @ gram @ trial - 2.0 * trial @ right)
        if error < best_error:
            best, best_error = trial, error
    return best
