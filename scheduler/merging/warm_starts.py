"""Warm starts in the market: which donors to probe, which to take, and how much less to sell.

Departures from Ymir, each from an experiment (docs/algorithms/merging.md):

- Jobs are not merged in time: a new job starts from a finished adapter, so none waits for another.
- The score is the donor's loss on a few of the target's rows less the base's; the paper's cosine of
  squared gradients predicted nothing.
- The second matrices of an adapter that is not near are taken by half, which spares harm; those of
  a near one whole, with which the same task with other rows was there at once.
- The share of the work that is sold is what earlier warm starts of the same kind needed, with a
  margin; the paper has no promise to keep.
- What a run from the base would end with is not predicted from how far the donor's own run lowered
  its loss: among related tasks that was wrong by a factor of two to six either way, and a donor
  that itself began warm lowered it hardly at all.
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
#: A donor's owner gets this share of what the saved work would have cost.
ROYALTY_PERCENT = 2
#: A donor is taken when its loss is at most this share of the base's.
LOSS_SHARE_MAX = 0.9
#: The rows are of the donor's own task where it loses on them at most so many times what it lost
#: on held-out rows of its own (measured: 0.8 to 1.0; on other tasks of its family 1.5 to 18),
NEAR_FACTOR_MAX = 1.25
#: and at most this share of the base's loss: a donor that learnt little is like many tasks.
NEAR_SHARE_MAX = 0.6
#: What a warm start is never quoted below, as a share of the cold work.
SHARE_MIN = 0.05
#: A start from a near donor is done at this share of what the donor loses: a run from the base on
#: other rows of the same task ended at 0.92 of that at the lowest.
NEAR_TARGET_SHARE = 0.9
#: No loss of a related donor says where a run from the base ends. A start from one is sold what
#: nearly all needed, and has done harm if it then has more than this share of the donor's loss.
HARM_SHARE = 0.8
#: Standard errors by which a quote lies above the mean.
MARGIN = 1.0
#: The same for starts that no target loss checks: standard deviations.
UNCHECKED_MARGIN = 2.0
#: Nats per token below which no loss is called worse than another.
TARGET_MIN = 0.02
#: Measured starts that the experiment's mean counts as.
PRIOR_WEIGHT = 4.0
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
    Likeness.RELATED: 0.55,
}
#: Its standard deviation.
PRIOR_DEVIATION: Mapping[Likeness, float] = {
    Likeness.SAME_DATA: 0.1,
    Likeness.NEAR: 0.1,
    Likeness.RELATED: 0.14,
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


def judge_likeness(base_loss: float, loss: float, *, donor_loss: float) -> Likeness:
    """How near a candidate that was chosen is, by its loss on the target's rows.

    Parameters
    ----------
    donor_loss : float
        On the candidate's own held-out rows, at its end.
    """
    is_own_task = loss <= NEAR_FACTOR_MAX * donor_loss and loss <= NEAR_SHARE_MAX * base_loss
    return Likeness.NEAR if is_own_task else Likeness.RELATED


def find_target_loss(likeness: Likeness, *, donor_loss: float, probed_loss: float) -> float:
    """The validation loss at which a warm start is as good as a run from the base.

    Parameters
    ----------
    donor_loss : float
        On the donor's own held-out rows, at its end.
    probed_loss : float
        Of the donor on the job's rows; for the very same data, as ``donor_loss``.

    Returns
    -------
    float
        Of the same data, the donor's own loss: it is a run from the base on these rows. Of a near
        donor, well below the lower one, so that neither a donor that learnt little nor one that
        fits other rows makes an easy target. Of a related one only what a run that did no harm is
        at in any case.
    """
    match likeness:
        case Likeness.SAME_DATA:
            return max(TARGET_MIN, donor_loss)
        case Likeness.NEAR:
            return max(TARGET_MIN, NEAR_TARGET_SHARE * min(donor_loss, probed_loss))
        case Likeness.RELATED:
            return HARM_SHARE * probed_loss


def quote_share(likeness: Likeness, observed: Sequence[float]) -> float:
    """Share of the cold work that a warm start is sold for.

    Parameters
    ----------
    observed : sequence of float
        What the latest measured starts of the kind needed, as shares of their cold work.

    Returns
    -------
    float
        Their mean, the experiment's counted in, and ``MARGIN`` standard errors above it; from
        ``SHARE_MIN`` to 1.
        Of related donors at least what nearly all starts of the experiment needed: what is
        observed of them is when harm was ruled out, not when they were as good as cold.
    """
    if likeness is Likeness.RELATED:
        least = PRIOR_SHARE[likeness] + UNCHECKED_MARGIN * PRIOR_DEVIATION[likeness]
        return min(1.0, max(least, float(np.mean([*observed[-OBSERVED_MAX:], least]))))
    latest = np.asarray(observed[-OBSERVED_MAX:], dtype=np.float64)
    weight = PRIOR_WEIGHT + len(latest)
    prior = PRIOR_SHARE[likeness]
    mean = (PRIOR_WEIGHT * prior + latest.sum()) / weight
    squares = PRIOR_WEIGHT * (PRIOR_DEVIATION[likeness] ** 2 + (prior - mean) ** 2)
    squares += ((latest - mean) ** 2).sum()
    return float(min(1.0, max(SHARE_MIN, mean + MARGIN * math.sqrt(squares) / weight)))


def find_warm_steps(share: float, *, total_steps: int) -> int:
    """Steps that a share of a job's work is, at least one; all where it spares nothing."""
    return min(total_steps, max(1, math.ceil(share * total_steps)))
