"""Equation 1 of Allpass as printed, beside which the demand of ``scheduler.tiers`` is tested."""

from __future__ import annotations

import numpy as np

from scheduler.tiers.demand import Floats


def demand_printed(
    *, remaining_s: Floats, due_in_s: Floats, gpus: Floats, windows_s: Floats
) -> Floats:
    """Equation 1 as printed.

    Parameters
    ----------
    remaining_s : (n,) array
        r_j, seconds of run time left.
    due_in_s : (n,) array
        Deadline minus now, seconds; negative when overdue.
    gpus : (n,) array
        GPUs of the gang.
    windows_s : (w,) array
        Window lengths, seconds, rising.

    Returns
    -------
    (w,) array
        D(t, T), GPU seconds.
    """
    order = np.argsort(due_in_s, kind="stable")
    totals = np.concatenate(([0.0], np.cumsum((remaining_s * gpus)[order])))
    return totals[np.searchsorted(due_in_s[order], windows_s, side="right")]
