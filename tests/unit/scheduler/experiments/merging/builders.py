"""Jobs and worlds by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scheduler.experiments.merging.transfer import MEASURED, Tasks, TransferShares, WorkRatio, World
from scheduler.experiments.merging.workload import Jobs


def world(*, unrelated: float = 1.0, related: float = 0.5, spatial: float = 1.0) -> World:
    """Every pair of a relation gains the same."""
    return replace(
        MEASURED,
        name="by hand",
        unrelated=WorkRatio(unrelated, 0.0),
        related=WorkRatio(related, 0.0),
        scaled_unrelated=WorkRatio(unrelated, 0.0),
        scaled_related=WorkRatio(related, 0.0),
        spatial=WorkRatio(spatial, 0.0),
    )


def jobs(
    work_s: Sequence[float],
    *,
    arrive_s: Sequence[float] | None = None,
    asked: Sequence[int] | None = None,
    related: bool = True,
    epochs: int = 4,
    loss: float = 0.0,
) -> Jobs:
    """Jobs that scale perfectly, each about a task of its own, in one family or in none."""
    count = len(work_s)
    return Jobs(
        name="by hand",
        arrive_s=np.zeros(count) if arrive_s is None else np.array(arrive_s, np.float64),
        work_s=np.array(work_s, np.float64),
        asked=np.ones(count, np.int64) if asked is None else np.array(asked),
        loss=np.full(count, loss),
        pipeline=np.zeros(count, np.bool_),
        epochs=np.full(count, epochs),
        error=np.ones(count),
        tasks=Tasks(
            np.arange(count),
            np.zeros(count, np.int64) if related else np.arange(count),
            np.arange(count),
        ),
    )


def transfer(found: Jobs, truth: World) -> TransferShares:
    return TransferShares(truth, found.tasks, seed=0, scaled=False, correlation=1.0)
