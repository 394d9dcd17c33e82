"""From what was profiled of the jobs to the instance the task merger decides (sections 4.1-4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from scheduler.experiments.merging.instance import Instance
from scheduler.experiments.merging.iterations import (
    compute_converged_iterations,
    compute_printed_iterations,
    compute_spatial_iterations,
)
from scheduler.experiments.merging.loss_curve import LossCurve, fit_loss_curve
from scheduler.experiments.merging.time_table import TimeTable
from scheduler.experiments.merging.transferability import (
    ScoreLine,
    score_by_gradients,
    score_by_probe,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: A warm start is never taken to cost more than this much of the cold one: it is watched,
#: and stopped at the first validation that does not show it ahead.
WORST_RATIO = 1.1


class Estimator(StrEnum):
    """Where the estimates of merged jobs come from."""

    #: Cosine of Fisher diagonals, gain, scaled loss curve (the paper).
    GRADIENTS = "gradients"
    #: Donor's loss on rows of the target, share of the cold work.
    PROBE = "probe"


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured of one job."""

    id: str
    #: Row of the time table.
    configuration: str
    #: Global batch M and training rows D.
    batch: int
    rows: int
    #: Iterations, increasing from 1 on, and training losses there, ``[S]``.
    iterations: Floats
    losses: Floats
    #: Whether it runs on whole servers of four GPUs only.
    pipeline: bool = False
    #: Iterations already done.
    done: float = 0.0
    #: Mean squared gradients, ``[P]``; for :attr:`Estimator.GRADIENTS`.
    embedding: Floats | None = None
    #: Loss of the base on some of its rows; for :attr:`Estimator.PROBE`.
    base_loss: float | None = None


@dataclass(frozen=True, slots=True)
class DonorLoss:
    """Loss of a donor on the same rows of the target as its ``base_loss``."""

    donor: str
    target: str
    loss: float


@dataclass(frozen=True, slots=True)
class JobEstimate:
    """Iterations of a job alone."""

    id: str
    curve: LossCurve
    iterations: int
    #: What equation 2 answers read literally.
    iterations_as_printed: int


@dataclass(frozen=True, slots=True)
class PairEstimate:
    """What is predicted of a pair: a gain G (gradients) or a share of the work (probe)."""

    donor: str
    target: str
    score: float
    predicted: float
    #: Iterations of the target after the donor.
    iterations: float


def list_allocations(gpus: int, *, pipeline: bool = False) -> Ints:
    """The set A without 0: 1, 2, 3 and multiples of 4; multiples of 4 for pipelines."""
    fours = np.arange(4, gpus + 1, 4)
    return fours if pipeline else np.r_[np.arange(1, min(gpus, 3) + 1), fours]


def estimate_jobs(profiles: Sequence[Profile]) -> list[JobEstimate]:
    """Fit each job's loss curve and count its iterations (equations 2 and 3).

    Losses are normalised to the job's largest, as in section 2.2, and drops are measured
    per epoch.
    """
    found: list[JobEstimate] = []
    for profile in profiles:
        curve = fit_loss_curve(profile.iterations, profile.losses / profile.losses.max())
        found.append(
            JobEstimate(
                id=profile.id,
                curve=curve,
                iterations=compute_converged_iterations(curve, unit=_epoch(profile)),
                iterations_as_printed=compute_printed_iterations(curve),
            )
        )
    return found


def estimate_pairs(
    profiles: Sequence[Profile],
    jobs: Sequence[JobEstimate],
    probes: Sequence[DonorLoss],
    line: ScoreLine,
    estimator: Estimator,
) -> list[PairEstimate]:
    """Predict every ordered pair, or every probed one, from its score.

    Parameters
    ----------
    profiles, jobs
        In the same order.
    probes : sequence of DonorLoss
        Read by :attr:`Estimator.PROBE` only.
    line : ScoreLine
        Fitted to measured pairs: gains by gradient scores, or shares of the cold work by
        probe scores.

    Raises
    ------
    ValueError
        When a job lacks its embedding or base loss, or a probe names an unknown job.
    """
    if estimator is Estimator.GRADIENTS:
        return _by_gradients(profiles, jobs, line)
    return _by_probe(profiles, jobs, probes, line)


def build_instance(
    profiles: Sequence[Profile],
    jobs: Sequence[JobEstimate],
    pairs: Sequence[PairEstimate],
    table: TimeTable,
    *,
    gpus: int,
    estimator: Estimator,
) -> Instance:
    """Multiply iterations with seconds (equation 5) and set up the program.

    Spatial pairs (equation 4) are set up from gradient estimates only: measured, joint
    tuning saved GPU work in none of 72 pairs, so the probe has no form of it.
    """
    allocations = list_allocations(gpus)
    place = {profile.id: i for i, profile in enumerate(profiles)}
    seconds = np.array([_seconds(table, profile, allocations) for profile in profiles])
    left = [max(job.iterations - p.done, 0.0) for job, p in zip(jobs, profiles, strict=True)]
    first: list[int] = []
    second: list[int] = []
    spatial: list[bool] = []
    times: list[Floats] = []
    for pair in pairs:
        donor, target = place[pair.donor], place[pair.target]
        if profiles[target].done == 0:
            first.append(donor)
            second.append(target)
            spatial.append(False)
            times.append(pair.iterations * seconds[target])
    if estimator is Estimator.GRADIENTS:
        iterations = {(pair.donor, pair.target): pair.iterations for pair in pairs}
        for a, b in combinations(profiles, 2):
            if a.done == 0 and b.done == 0:
                joint = compute_spatial_iterations(
                    first=iterations[b.id, a.id],
                    second=iterations[a.id, b.id],
                    first_batch=a.batch,
                    second_batch=b.batch,
                    first_rows=a.rows,
                    second_rows=b.rows,
                )
                first.append(place[a.id])
                second.append(place[b.id])
                spatial.append(True)
                # One iteration of both takes the time of one of each.
                times.append(joint * (seconds[place[a.id]] + seconds[place[b.id]]))
    count = len(profiles)
    return Instance(
        gpus=gpus,
        allocations=allocations,
        times_s=np.array(left)[:, None] * seconds,
        members=np.ones(count, np.int64),
        held=np.zeros(count, np.int64),
        waited_s=np.zeros(count),
        first=np.array(first, np.int64),
        second=np.array(second, np.int64),
        spatial=np.array(spatial, np.bool_),
        pair_s=np.array(times).reshape(len(times), len(allocations)),
    )


def _by_gradients(
    profiles: Sequence[Profile], jobs: Sequence[JobEstimate], line: ScoreLine
) -> list[PairEstimate]:
    found: list[PairEstimate] = []
    for i, target in enumerate(profiles):
        for donor in profiles:
            if donor.id == target.id:
                continue
            if donor.embedding is None or target.embedding is None:
                raise ValueError(f"{donor.id} and {target.id} need an embedding each")
            # The same both ways, and so is its average for a spatial merge.
            score = score_by_gradients(donor.embedding, target.embedding)
            gain = float(line.predict(np.array([score]))[0])
            curve = jobs[i].curve.scaled(gain)
            iterations = compute_converged_iterations(curve, unit=_epoch(target))
            found.append(PairEstimate(donor.id, target.id, score, gain, float(iterations)))
    return found


def _by_probe(
    profiles: Sequence[Profile],
    jobs: Sequence[JobEstimate],
    probes: Sequence[DonorLoss],
    line: ScoreLine,
) -> list[PairEstimate]:
    place = {profile.id: i for i, profile in enumerate(profiles)}
    found: list[PairEstimate] = []
    for probe in probes:
        if probe.donor not in place or probe.target not in place or probe.donor == probe.target:
            raise ValueError(f"a probe of {probe.donor} on {probe.target} names no two jobs")
        target = place[probe.target]
        base_loss = profiles[target].base_loss
        if base_loss is None:
            raise ValueError(f"{probe.target} needs the base's loss on the rows probed")
        score = score_by_probe(base_loss, probe.loss)
        share = float(np.clip(line.predict(np.array([score]))[0], 0.0, WORST_RATIO))
        iterations = share * jobs[target].iterations
        found.append(PairEstimate(probe.donor, probe.target, score, share, iterations))
    return found


def _epoch(profile: Profile) -> float:
    return max(1.0, profile.rows / profile.batch)


def _seconds(table: TimeTable, profile: Profile, allocations: Ints) -> Floats:
    """Seconds of one iteration on each number of GPUs, infinite where not allowed."""
    allowed = {int(a) for a in allocations if not profile.pipeline or a % 4 == 0}
    row = table.measured.get(profile.configuration)
    if not row:
        raise ValueError(f"{profile.id}: the time table has no {profile.configuration}")
    fewest, most = min(row), max(row)
    return np.array(
        [
            table.execution_s(1.0, int(a), profile.configuration)
            if int(a) in allowed and fewest <= a <= most
            else np.inf
            for a in allocations
        ]
    )
