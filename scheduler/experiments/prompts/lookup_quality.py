"""How good the prompts are that lookups find, and what they cost to find (figures 9 and 10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.experiments.prompts.bank import PromptBank, build_bank
from scheduler.experiments.prompts.lookup import (
    SCORE_ROWS,
    Lookup,
    look_up_all,
    look_up_by_halving,
    look_up_two_layers,
)
from scheduler.experiments.prompts.replacement import insert_prompt
from scheduler.experiments.prompts.tuning_tasks import (
    Floats,
    Ints,
    TaskRules,
    TaskWorld,
    TuningTask,
)

#: Candidates of the bank: 25 clusters of 24 on average.
CANDIDATES, CLUSTERS = 600, 25
#: Candidates that the ideal is the best of, after the paper, and random starts of a task.
SHORTLIST, RANDOM = 20, 20
#: Ways to find a prompt.
WAYS = ("brute force", "two layers", "two layers, inserted", "halving")


@dataclass(frozen=True, slots=True)
class LookupResult:
    """What one way found for one task."""

    rows_scored: int
    score: float
    #: Iterations to accuracy.
    iterations: int


@dataclass(frozen=True, slots=True)
class TaskResult:
    """One task: all ways, the ideal and random starts."""

    found: Mapping[str, LookupResult]
    #: Iterations of the best of the shortlist by score.
    ideal: int
    #: Iterations of random candidates of the bank.
    random: tuple[int, ...]

    def speedup(self, way: str) -> float:
        """Iterations of the median random candidate over those of the prompt found."""
        return float(np.median(self.random)) / self.found[way].iterations

    def relative(self, way: str) -> float:
        """Iterations of the ideal over those of the prompt found; 1 is as good."""
        return self.ideal / self.found[way].iterations


def measure_lookups(
    *, seed: int, tasks: int, candidates: int = CANDIDATES, rules: TaskRules | None = None
) -> list[TaskResult]:
    """Look up initial prompts for new tasks and tune from them.

    Parameters
    ----------
    seed : int
        Draws the network, the tasks and the bank.
    tasks : int
        How many new tasks.
    candidates : int
        Prompts of the bank.
    rules : TaskRules, optional
        What differs from the defaults.
    """
    world = TaskWorld(seed, rules)
    prompts = world.make_candidates(candidates)
    features = world.network.features(prompts, world.probes)
    names = [f"prompt-{k}" for k in range(candidates)]
    clusters = max(1, round(CLUSTERS * (candidates / CANDIDATES) ** 0.5))
    bank = build_bank(names, features, clusters=clusters, capacity=candidates, seed=seed)
    grown, places = _grow_bank(names, features, clusters, seed)
    return [
        _measure_task(world, world.draw_task(SCORE_ROWS), prompts, bank, grown, places)
        for _ in range(tasks)
    ]


def _grow_bank(
    names: Sequence[str], features: Floats, clusters: int, seed: int
) -> tuple[PromptBank, Ints]:
    """The bank of the first half, into which the others were inserted, full at three quarters.

    Returns
    -------
    bank : PromptBank
    places : (C,) array
        Place of each of its prompts in ``names``.
    """
    half, capacity = len(names) // 2, 3 * len(names) // 4
    bank = build_bank(
        names[:half], features[:half], clusters=min(clusters, half), capacity=capacity, seed=seed
    )
    for name, feature in zip(names[half:], features[half:], strict=True):
        bank, _ = insert_prompt(bank, name, feature)
    place = {name: k for k, name in enumerate(names)}
    return bank, np.array([place[name] for name in bank.ids])


def _measure_task(
    world: TaskWorld,
    task: TuningTask,
    prompts: Floats,
    bank: PromptBank,
    grown: PromptBank,
    places: Ints,
) -> TaskResult:
    def score(chosen: Ints, rows: range) -> Floats:
        return world.score(task, prompts[chosen], rows)

    every = np.arange(len(prompts))
    inserted = look_up_two_layers(grown, lambda chosen, rows: score(places[chosen], rows))
    found: dict[str, tuple[Lookup, int]] = {}
    for way, lookup in (
        ("brute force", look_up_all(every, score)),
        ("two layers", look_up_two_layers(bank, score)),
        ("halving", look_up_by_halving(every, score)),
    ):
        found[way] = lookup, lookup.candidate
    found["two layers, inserted"] = inserted, int(places[inserted.candidate])

    shortlist = np.argsort(score(every, range(SCORE_ROWS)).mean(axis=1))[:SHORTLIST]
    drawn = world.choose(RANDOM, len(prompts))
    target = world.target_of(task, prompts[drawn])
    picked = np.array([found[way][1] for way in WAYS])
    starts = prompts[np.concatenate([picked, shortlist, drawn])]
    iterations = world.iterations_to(task, starts, target)
    shortlisted = iterations[len(WAYS) : len(WAYS) + SHORTLIST]
    return TaskResult(
        found={
            way: LookupResult(found[way][0].rows_scored, found[way][0].score, int(iterations[k]))
            for k, way in enumerate(WAYS)
        },
        ideal=int(min(shortlisted.min(), iterations[: len(WAYS)].min())),
        random=tuple(int(x) for x in iterations[len(WAYS) + SHORTLIST :]),
    )
