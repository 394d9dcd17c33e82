"""Soft deadlines, given or inferred (Allpass, section 3.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def compute_soft_deadlines_s(
    *, arrived_s: Floats, predicted_s: Floats, factors: Floats, given_s: Floats | None = None
) -> Floats:
    """The deadlines the policies read, on the clock of ``arrived_s``.

    One that its owner gave holds as it is. One that was not given is inferred from the
    predicted run time; a bid of the live market always names its own.

    Parameters
    ----------
    arrived_s, predicted_s : (n,) arrays
        Arrival and predicted run time, seconds.
    factors : (n,) array
        Multiples of the predicted run time to infer with; the paper draws them from
        1 to 10 (section 5.1).
    given_s : (n,) array, optional
        Deadlines that owners gave, NaN where they gave none.

    Returns
    -------
    (n,) array
        Seconds.

    Raises
    ------
    ValueError
        If a given deadline lies before its arrival, or a prediction is not above zero.
    """
    if not np.all(predicted_s > 0):
        raise ValueError(f"predicted run times must be above zero, got {predicted_s.min()}")
    inferred = arrived_s + factors * predicted_s
    if given_s is None:
        return inferred
    early = np.flatnonzero(given_s < arrived_s)
    if early.size:
        j = early[0]
        raise ValueError(f"deadline {given_s[j]} lies before the arrival {arrived_s[j]}")
    return np.where(np.isnan(given_s), inferred, given_s)
