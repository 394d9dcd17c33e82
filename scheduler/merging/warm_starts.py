"""Warm starts in the market: which donors to probe, which to take, and how much less to sell.

Departures from Ymir, each from an experiment (docs/algorithms/merging.md):

- Jobs are not merged in time: a new job starts from a finished adapter, so none waits for another.
- The score is the donor's loss on a few of the target's rows less the base's; the paper's cosine of
  squared gradients predicted nothing.
- The second matrices of an adapter that is not near are taken by half, which spares harm; those of
  a near one whole, with which the same task with other rows was there at once.
- The share of the work that is sold is the mean of what earlier warm starts of the same kind
  needed, with a margin; the paper has no promise to keep.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

#: Donors that are probed for one job.
CANDIDATES_MAX = 8
#: Share of a related donor's second matrices that a job begins with.
RELATED_SCALE = 0.5
#: A donor is taken when its loss is at most this share of the base's.
LOSS_SHARE_MAX = 0.9
#: At most this share of the base's loss: the rows are much like what the donor was trained on.
NEAR_SHARE_MAX = 0.3
#: What a warm start is never quoted below, as a share of the cold work.
SHARE_MIN = 0.05
#: A job may be this much above the expected final loss and counts as having reached it.
TARGET_SLACK = 1.02
#: Standard errors by which a quote lies above the mean.
MARGIN = 1.0
#: Measured starts that the experiment's mean counts as, and its standard deviation.
PRIOR_WEIGHT, PRIOR_DEVIATION = 4.0, 0.1
#: Latest measured starts of a kind that a quote is made from.
OBSERVED_MAX = 50


class Likeness(StrEnum):
    """How near a start's adapter is to a job's data."""

    #: Trained on the very same rows.
    SAME_DATA = "same_data"
    NEAR = "near"
    RELATED = "related"


#: Share of the cold work that starts needed in the experiment.
PRIOR_SHARE: Mapping[Likeness, float] = {
    Likeness.SAME_DATA: 0.05,
    Likeness.NEAR: 0.1,
    Likeness.RELATED: 0.6,
}


def choose_candidates(target: Floats, donors: Floats, *, most: int = CANDIDATES_MAX) -> list[int]:
    """The donors whose data is most like the target's, nearest first.

    Parameters
    ----------
    target : float32[D]
        Unit vector of the job's data.
    donors : float32[N, D]
        Unit vectors of the donors' data.
    most : int
        Of them at most.

    Returns
    -------
    list of int
        Rows of ``donors``; of equals the first.
    """
    if not len(donors):
        return []
    likeness = donors @ target
    count = min(most, len(likeness))
    nearest = np.argpartition(-likeness, count - 1)[:count]
    return sorted((int(row) for row in nearest), key=lambda row: (-likeness[row], row))


def choose_start(base_loss: float, losses: Sequence[float | None]) -> int | None:
    """The candidate that a job begins with; ``None``: none knows enough of its rows.

    Parameters
    ----------
    base_loss : float
        Mean loss of the base on a few rows, in nats per token.
    losses : sequence of float or None
        Of each candidate on the same rows; ``None`` where it could not be measured.

    Returns
    -------
    int or None
        Of the lowest loss, where that is at most ``LOSS_SHARE_MAX`` of the base's.
    """
    known = [(loss, at) for at, loss in enumerate(losses) if loss is not None and loss >= 0]
    if not known or not math.isfinite(base_loss) or base_loss <= 0:
        return None
    loss, at = min(known)
    return at if loss <= LOSS_SHARE_MAX * base_loss else None


def judge_likeness(base_loss: float, loss: float) -> Likeness:
    """How near a candidate that was chosen is, by its loss on the target's rows."""
    return Likeness.NEAR if loss <= NEAR_SHARE_MAX * base_loss else Likeness.RELATED


def predict_target_loss(
    base_loss: float, *, donor_before: float, donor_after: float
) -> float | None:
    """The validation loss that a cold run is expected to end with.

    The donor's own run took its rows' loss from ``donor_before`` to ``donor_after``; a cold run
    on like rows is expected to take the base's loss down by the same factor.

    Returns
    -------
    float or None
        ``None`` where the donor's own run did not lower its loss.
    """
    if not 0 < donor_after < donor_before:
        return None
    return base_loss * donor_after / donor_before * TARGET_SLACK


def quote_share(likeness: Likeness, observed: Sequence[float], *, margin: float = MARGIN) -> float:
    """Share of the cold work that a warm start is sold for.

    Parameters
    ----------
    observed : sequence of float
        What the latest measured starts of the kind needed, as shares of their cold work.
    margin : float
        Standard errors above the mean.

    Returns
    -------
    float
        Their mean, the experiment's counted in, and the margin above it;
        from ``SHARE_MIN`` to 1.
    """
    latest = np.asarray(observed[-OBSERVED_MAX:], dtype=np.float64)
    weight = PRIOR_WEIGHT + len(latest)
    prior = PRIOR_SHARE[likeness]
    mean = (PRIOR_WEIGHT * prior + latest.sum()) / weight
    squares = PRIOR_WEIGHT * (PRIOR_DEVIATION**2 + (prior - mean) ** 2)
    squares += ((latest - mean) ** 2).sum()
    return float(min(1.0, max(SHARE_MIN, mean + margin * math.sqrt(squares) / weight)))


def find_warm_steps(share: float, *, total_steps: int, interval: int) -> int:
    """Steps that a share of a job's work is: whole evaluation intervals, at least one.

    Parameters
    ----------
    interval : int
        Steps between two evaluations: only there it is known whether the start was good.

    Returns
    -------
    int
        ``total_steps`` where a warm start spares nothing.
    """
    return min(total_steps, max(1, math.ceil(share * total_steps / interval)) * interval)
