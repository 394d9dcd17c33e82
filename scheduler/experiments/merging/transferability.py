"""Scores that predict what one task gains from another, and how well they do.

Source: Ymir, section 4.1. Departures are listed in
``docs/algorithms/merging.md``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def score_by_gradients(donor: Floats, target: Floats) -> float:
    """Cosine of two tasks' Fisher diagonals, the paper's Task2Vec score S(A, B).

    The gradients of LoRA's A are zero before the first step, and those of B depend on
    the random A, so on LoRA this predicts nothing; kept to reproduce the paper.

    Parameters
    ----------
    donor, target : ndarray
        Mean squared gradients of the same parameters, ``[P]``.

    Raises
    ------
    ValueError
        When the shapes differ or one of the two is all zero.
    """
    if donor.shape != target.shape:
        raise ValueError(f"embeddings differ in size: {donor.shape} and {target.shape}")
    length = float(np.linalg.norm(donor) * np.linalg.norm(target))
    if not length > 0:
        raise ValueError("an embedding of zeros has no direction")
    return float(donor @ target) / length


def score_by_probe(base_loss: float, donor_loss: float) -> float:
    """How much lower the donor's loss on some rows of the target is than the base's.

    A departure from the paper: it costs a third of an iteration per donor, needs no
    gradients, and predicted transfer where the cosine of gradients did not.
    """
    return base_loss - donor_loss


@dataclass(frozen=True, slots=True)
class ScoreLine:
    """A straight line from a score to what it predicts, by least squares."""

    intercept: float
    slope: float

    def predict(self, scores: Floats) -> Floats:
        """Predictions for scores of any shape."""
        return self.intercept + self.slope * scores


def fit_score_line(scores: Sequence[float], measured: Sequence[float]) -> ScoreLine:
    """Regress what was measured on the scores (section 4.1).

    Equal scores tell nothing apart: then the line is flat at the mean.

    Raises
    ------
    ValueError
        Without pairs, when the two sequences differ in length, or for a value that is
        not finite.
    """
    if len(scores) != len(measured) or not scores:
        raise ValueError("a line needs as many measured values as scores, and at least one")
    x, y = np.array(scores, np.float64), np.array(measured, np.float64)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("scores and measured values must be finite")
    spread = x - x.mean()
    square = float(spread @ spread)
    slope = float(spread @ y) / square if square > 0 else 0.0
    return ScoreLine(float(y.mean()) - slope * float(x.mean()), slope)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How well predictions match what was measured (table 2, plus what it leaves out)."""

    #: Pearson's correlation; NaN when one side does not vary.
    correlation: float
    #: Share of pairs whose sign was right; zero counts as positive, as in the paper.
    sign: float
    #: What always answering the more frequent sign would have scored.
    majority: float


def assess_predictions(predicted: Floats, measured: Floats) -> Accuracy:
    """Compare predicted with measured gains, the majority class beside the accuracy.

    An accuracy of 97 % at r = 0.44 says only that 97 % of the pairs were positive, so
    the two are never reported apart.

    Parameters
    ----------
    predicted, measured : ndarray
        Gains, ``[P]``, above zero where transfer helps.
    """
    positive = measured >= 0
    share = float(positive.mean())
    varies = float(np.ptp(predicted)) > 0 and float(np.ptp(measured)) > 0
    return Accuracy(
        correlation=float(np.corrcoef(predicted, measured)[0, 1]) if varies else math.nan,
        sign=float(((predicted >= 0) == positive).mean()),
        majority=max(share, 1.0 - share),
    )
