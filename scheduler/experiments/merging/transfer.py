"""What transfer is really worth in a simulated cluster, and what estimators see of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scheduler.experiments.merging.transferability import (
    Accuracy,
    ScoreLine,
    assess_predictions,
    fit_score_line,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Pairs an estimator's line is fitted to.
PILOT_PAIRS = 400
#: Entries of the table of normal numbers that pairs of tasks draw from.
NOISE = 1 << 16
#: Predicted shares of the work are cut to this range.
LEAST_SHARE, MOST_SHARE = 0.02, 2.0


@dataclass(frozen=True, slots=True)
class WorkRatio:
    """A log-normal share of the cold work."""

    median: float
    #: Standard deviation of the logarithm.
    spread: float


@dataclass(frozen=True, slots=True)
class World:
    """How tasks help each other; shares of the work a task needs from the base."""

    name: str
    #: Temporal transfer between tasks of different families, and of one family.
    unrelated: WorkRatio
    related: WorkRatio
    #: The same with the donor's B scaled by 0.5.
    scaled_unrelated: WorkRatio
    scaled_related: WorkRatio
    #: Joint work over the work of both alone.
    spatial: WorkRatio
    #: Same task with other data, and the very same data.
    same_task: float
    same_data: float
    #: Correlation of each score with the logarithm of the true share.
    gradient_correlation: float
    probe_correlation: float


#: The paper: more than half of the pairs faster, up to ten times (figure 5), joint tuning
#: as good as after each other, and r between the 0.44 and 0.79 of table 2.
PAPER = World(
    "paper",
    unrelated=WorkRatio(1.0, 0.5),
    related=WorkRatio(0.5, 0.6),
    scaled_unrelated=WorkRatio(1.0, 0.5),
    scaled_related=WorkRatio(0.5, 0.6),
    spatial=WorkRatio(0.9, 0.35),
    same_task=0.24,
    same_data=0.02,
    gradient_correlation=0.6,
    probe_correlation=0.6,
)
#: Measured on a small base: plain transfer slows 70 % of the pairs; with B scaled by 0.5,
#: 41 % of all and 83 % of the related pairs are faster; joint tuning saves nothing; the
#: cosine of gradients predicts nothing, the probe r = 0.58.
MEASURED = World(
    "measured",
    unrelated=WorkRatio(1.35, 0.4),
    related=WorkRatio(0.95, 0.4),
    scaled_unrelated=WorkRatio(1.08, 0.125),
    scaled_related=WorkRatio(0.70, 0.37),
    spatial=WorkRatio(1.4, 0.12),
    same_task=0.24,
    same_data=0.02,
    gradient_correlation=0.0,
    probe_correlation=0.58,
)
WORLDS = {world.name: world for world in (PAPER, MEASURED)}


@dataclass(frozen=True, slots=True)
class Tasks:
    """What each job is about, ``[N]`` each."""

    #: Jobs of one task differ in their data only.
    task: Ints
    #: Tasks of one family are related.
    family: Ints
    #: Jobs with the same number have the same rows.
    data: Ints


class TransferShares:
    """True and predicted shares of the work for pairs of jobs, drawn from a seed.

    Parameters
    ----------
    world : World
    tasks : Tasks
        Of all jobs.
    seed : int
        The same seed gives the same pairs of tasks the same shares.
    scaled : bool
        Whether donors' B is scaled by 0.5.
    correlation : float
        Of the estimator's score with the logarithm of the true share.
    noise : float
        Half-width of a uniform relative error put on predictions (figure 8).
    same_data_merges : bool
        Whether jobs on the very same data may be merged.
    """

    def __init__(
        self,
        world: World,
        tasks: Tasks,
        *,
        seed: int,
        scaled: bool,
        correlation: float,
        noise: float = 0.0,
        same_data_merges: bool = True,
    ) -> None:
        rng = np.random.default_rng([seed, 31])
        self._normal = rng.standard_normal(NOISE)
        self._uniform = rng.uniform(-1.0, 1.0, NOISE)
        self._world = world
        self._tasks = tasks
        self._scaled = scaled
        self._correlation = correlation
        self._noise = noise
        self._same_data_merges = same_data_merges
        pilots = replace(
            tasks,
            task=np.arange(2 * PILOT_PAIRS),
            family=np.arange(2 * PILOT_PAIRS) // 2 % (PILOT_PAIRS // 2),
            data=np.arange(2 * PILOT_PAIRS),
        )
        # A quarter of the pilot pairs is related, as among nine tasks in three families.
        donor = rng.integers(0, 2 * PILOT_PAIRS, PILOT_PAIRS)
        other = rng.integers(0, 2 * PILOT_PAIRS, PILOT_PAIRS)
        related = rng.random(PILOT_PAIRS) < 0.25
        target = np.where(related, donor ^ 1, np.where(other == donor, donor ^ 1, other))
        self.temporal_line = self._fit(pilots, donor, target, together=False)
        self.spatial_line = self._fit(pilots, donor, target, together=True)

    def shares(self, donor: Ints, target: Ints) -> Floats:
        """True share of its cold work that a target needs after a donor."""
        found = self._drawn(self._tasks, donor, target)
        same_task = self._tasks.task[donor] == self._tasks.task[target]
        same_data = self._tasks.data[donor] == self._tasks.data[target]
        found = np.where(same_task, self._world.same_task, found)
        return np.where(same_data, self._world.same_data, found)

    def joint_shares(self, one: Ints, other: Ints) -> Floats:
        """True joint work of two jobs over the work of both alone."""
        found = self._joint(self._tasks, one, other)
        same = self._tasks.data[one] == self._tasks.data[other]
        return np.where(same, 0.5, found)

    def predicted_shares(self, donor: Ints, target: Ints) -> Floats:
        """What the estimator says of :meth:`shares`; infinite where merging is ruled out.

        Equal data are known by their hash, so they need no score.
        """
        truth = np.log(self._drawn(self._tasks, donor, target))
        same_task = self._tasks.task[donor] == self._tasks.task[target]
        truth = np.where(same_task, np.log(self._world.same_task), truth)
        scores = self._scores(self._tasks, donor, target, truth, 7)
        return self._said(self.temporal_line, scores, donor, target, self._world.same_data)

    def predicted_joint_shares(self, one: Ints, other: Ints) -> Floats:
        """What the estimator says of :meth:`joint_shares`."""
        low, high = np.minimum(one, other), np.maximum(one, other)
        truth = np.log(self._joint(self._tasks, low, high))
        scores = self._scores(self._tasks, low, high, truth, 11)
        return self._said(self.spatial_line, scores, one, other, 0.5)

    def _said(
        self, line: ScoreLine, scores: Floats, one: Ints, other: Ints, same_data: float
    ) -> Floats:
        shares = line.predict(scores)
        errors = self._uniform[self._draw(self._tasks, one, other, 13)]
        shares = np.clip(shares * (1.0 + self._noise * errors), LEAST_SHARE, MOST_SHARE)
        same = self._tasks.data[one] == self._tasks.data[other]
        return np.where(same, same_data if self._same_data_merges else np.inf, shares)

    def _fit(self, pilots: Tasks, donor: Ints, target: Ints, *, together: bool) -> ScoreLine:
        if together:
            truth = np.log(self._joint(pilots, donor, target))
            scores = self._scores(pilots, donor, target, truth, 11)
        else:
            truth = np.log(self._drawn(pilots, donor, target))
            scores = self._scores(pilots, donor, target, truth, 7)
        return fit_score_line(scores.tolist(), np.exp(truth).tolist())

    def assess(self, donor: Ints, target: Ints) -> Accuracy:
        """How well predicted savings match the true ones."""
        return assess_predictions(
            1.0 - self.predicted_shares(donor, target), 1.0 - self.shares(donor, target)
        )

    def _drawn(self, tasks: Tasks, donor: Ints, target: Ints) -> Floats:
        world = self._world
        far = world.scaled_unrelated if self._scaled else world.unrelated
        near = world.scaled_related if self._scaled else world.related
        related = tasks.family[donor] == tasks.family[target]
        normal = self._normal[self._draw(tasks, donor, target, 1)]
        spread = np.where(related, near.spread, far.spread)
        return np.where(related, near.median, far.median) * np.exp(spread * normal)

    def _joint(self, tasks: Tasks, one: Ints, other: Ints) -> Floats:
        low = np.minimum(tasks.task[one], tasks.task[other])
        high = np.maximum(tasks.task[one], tasks.task[other])
        normal = self._normal[_hash(low, high, 3)]
        return self._world.spatial.median * np.exp(self._world.spatial.spread * normal)

    def _scores(self, tasks: Tasks, donor: Ints, target: Ints, truth: Floats, salt: int) -> Floats:
        """Scores with the wished correlation with the truth, higher for smaller shares."""
        r = self._correlation
        noise = self._normal[self._draw(tasks, donor, target, salt)]
        return -r * truth / 0.4 + (1.0 - r * r) ** 0.5 * noise

    def _draw(self, tasks: Tasks, donor: Ints, target: Ints, salt: int) -> Ints:
        return _hash(tasks.task[donor], tasks.task[target], salt)


def _hash(one: Ints, other: Ints, salt: int) -> Ints:
    """A place in the table of noise for an ordered pair of tasks."""
    mixed = one.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= (other.astype(np.uint64) + np.uint64(salt << 40)) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return (mixed % np.uint64(NOISE)).astype(np.int64)
