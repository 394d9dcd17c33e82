"""How often jobs die before their predicted end, learned while they run.

Deaths per second of exposure, by age and by predicted length, since a job of
minutes and a job of hours that are both five minutes old do not die alike.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

#: Age bins: 0-30 s, 30-60 s, doubling up to the last, which is open.
AGE_BINS = 14
#: Length classes: predicted below 10 min, 1 h, 6 h, longer; a bound belongs to the class above.
LENGTH_BOUNDS_S = (600.0, 3600.0, 21600.0)
LENGTH_CLASSES = 4
#: Seconds of exposure without a death that every bin is born with, so that one
#: early death does not condemn all jobs of its age.
PRIOR_EXPOSURE_S = 3600.0

Hazards = NDArray[np.float64]


def find_age_bin(age_s: float) -> int:
    """The bin of an age in seconds."""
    if age_s < 30.0:
        return 0
    return min(AGE_BINS - 1, 1 + int(math.log2(age_s / 30.0)))


def find_length_class(predicted_s: float) -> int:
    """The class of a predicted run time in seconds."""
    row = 0
    while row < LENGTH_CLASSES - 1 and predicted_s >= LENGTH_BOUNDS_S[row]:
        row += 1
    return row


def compute_hazard_rate(deaths: Hazards, exposure_s: Hazards, row: int, column: int) -> float:
    """Deaths per second among jobs of length class ``row`` in age bin ``column``.

    Parameters
    ----------
    deaths, exposure_s : (LENGTH_CLASSES, AGE_BINS) arrays
        Counts and seconds lived, filled by :func:`observe`.
    """
    return deaths[row, column] / (exposure_s[row, column] + PRIOR_EXPOSURE_S)


def observe(
    deaths: Hazards,
    exposure_s: Hazards,
    row: int,
    from_age_s: float,
    to_age_s: float,
    died: bool,
) -> None:
    """Adds what was seen of one job between two ages to the tables, in place.

    The loop repeats the bins of :func:`find_age_bin` by their ends, so that it calls
    nothing and can be compiled as it stands.
    """
    column, end_s = 0, 30.0
    while column < AGE_BINS - 1 and from_age_s >= end_s:
        column, end_s = column + 1, end_s * 2.0
    age = from_age_s
    while column < AGE_BINS - 1 and to_age_s >= end_s:
        exposure_s[row, column] += end_s - age
        age, column, end_s = end_s, column + 1, end_s * 2.0
    exposure_s[row, column] += to_age_s - age
    if died:
        deaths[row, column] += 1.0
