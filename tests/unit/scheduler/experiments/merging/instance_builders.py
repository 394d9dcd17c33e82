"""Instances of the task merger by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler.experiments.merging.estimates import list_allocations
from scheduler.experiments.merging.instance import Instance

#: Donor, target or second unit, whether spatial, and seconds on each number of GPUs.
Pair = tuple[int, int, bool, Sequence[float]]


def instance(
    gpus: int, times: Sequence[Sequence[float]], pairs: Sequence[Pair] = (), **other: Any
) -> Instance:
    """One member each, nothing held, nobody waited yet, unless ``other`` says so."""
    count, allocations = len(times), list_allocations(gpus)
    shape = (len(pairs), len(allocations))
    arrays = {
        "members": np.ones(count, np.int64),
        "held": np.zeros(count, np.int64),
        "waited_s": np.zeros(count),
    }
    return Instance(
        gpus=gpus,
        allocations=allocations,
        times_s=np.array(times, np.float64).reshape(count, len(allocations)),
        first=np.array([pair[0] for pair in pairs], np.int64),
        second=np.array([pair[1] for pair in pairs], np.int64),
        spatial=np.array([pair[2] for pair in pairs], np.bool_),
        pair_s=np.array([pair[3] for pair in pairs], np.float64).reshape(shape),
        **(arrays | other),
    )
