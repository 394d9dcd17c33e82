"""Soft deadlines, given or inferred (Allpass, section 3.1)."""

from __future__ import annotations

#: Multiple of the predicted run time when the owner names no deadline: the middle
#: of the 1-10 the paper draws from (section 5.1).
INFERRED_FACTOR = 5.0


def soft_deadline_s(
    *,
    arrived_s: float,
    predicted_s: float,
    given_s: float | None = None,
    factor: float = INFERRED_FACTOR,
) -> float:
    """The deadline the policies read, in the seconds of ``arrived_s``.

    Raises
    ------
    ValueError
        If a given deadline lies before the arrival, or the prediction is not
        above zero.
    """
    if given_s is not None:
        if given_s < arrived_s:
            raise ValueError(f"deadline {given_s} lies before the arrival {arrived_s}")
        return given_s
    if not predicted_s > 0:
        raise ValueError(f"predicted run time must be above zero, got {predicted_s}")
    return arrived_s + factor * predicted_s
