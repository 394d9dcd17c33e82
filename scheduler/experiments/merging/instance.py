"""What the task merger decides on, as arrays, and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Mode(StrEnum):
    """How a job learns (section 2.1)."""

    NORMAL = "normal"
    TEMPORAL = "temporal"
    SPATIAL = "spatial"


@dataclass(frozen=True, slots=True)
class Instance:
    """One scheduling interval: ``N`` units, ``A`` possible numbers of GPUs, ``P`` pairs.

    A unit is a job, or two jobs merged in an earlier interval that run as one.
    """

    #: GPUs of the cluster (R).
    gpus: int
    #: Numbers of GPUs above zero that a unit may get, increasing, ``[A]``.
    allocations: Ints
    #: Seconds each unit still needs, infinite where the number is not allowed, ``[N, A]``.
    times_s: Floats
    #: Jobs in each unit, 1 or 2, ``[N]``.
    members: Ints
    #: GPUs each unit holds now, ``[N]``.
    held: Ints
    #: Seconds each unit has spent waiting so far, ``[N]``.
    waited_s: Floats
    #: Units of each pair: donor and target when temporal, ``[P]``.
    first: Ints
    second: Ints
    #: Whether the pair is tuned together rather than one after the other, ``[P]``.
    spatial: Bools
    #: Seconds of the target after the donor (temporal) or of both together, ``[P, A]``.
    pair_s: Floats
    #: Seconds a unit that gets nothing is taken to wait.
    wait_s: float = 120.0
    #: Seconds lost when a unit's GPUs change.
    switch_s: float = 0.0

    @property
    def jobs(self) -> int:
        """Jobs in all units (the N of the paper)."""
        return int(self.members.sum())


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a unit or a pair gets."""

    unit: int
    #: The target (temporal) or second unit of a pair; ``None`` for a unit alone.
    partner: int | None
    mode: Mode
    gpus: int


@dataclass(frozen=True, slots=True)
class Merge:
    """The decision for one interval."""

    assignments: tuple[Assignment, ...]
    #: Units that get nothing.
    waiting: tuple[int, ...]
    objective: float
    #: Proven lower bound of the objective of any decision.
    bound: float
    #: Whether the objective is proven to be within the gap allowed of the bound.
    optimal: bool
    #: Whether any decision satisfies the constraints.
    feasible: bool
    #: Binary variables.
    columns: int
    #: Pairs the program was given.
    pairs: int
