"""Lookups: the initial prompt whose loss on a few rows of the job's data is least.

Section 4.3.2, equation 1. Three ways, by what they score: everything (the reference), the
two layers of the bank (the paper's), and all candidates on few rows, few candidates on all
rows (successive halving, the default).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scheduler.experiments.prompts.bank import PromptBank
from scheduler.experiments.prompts.clustering import Floats, Ints

#: Rows of the job's data that a score is the mean of (section 4.3.2).
SCORE_ROWS = 16
#: Computes losses on the job's base model: places of candidates in the bank and rows of the
#: job's data to a (candidates, rows) array.
Scorer = Callable[[Ints, range], Floats]


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a lookup found."""

    #: Place of the prompt in the bank.
    candidate: int
    #: Its mean loss over all rows.
    score: float
    #: Losses computed: what the lookup cost.
    rows_scored: int


@dataclass(frozen=True, slots=True)
class HalvingRules:
    """How many rows each stage scores, and how many candidates survive it."""

    rows: tuple[int, ...] = (1, 4, SCORE_ROWS)
    #: At most so many. Of a small bank half go at each stage but the last, which takes no fewer
    #: than the stage before it lets through.
    survivors: tuple[int, ...] = (60, 15, 1)

    def count_survivors(self, stage: int, alive: int) -> int:
        """Count the candidates that survive a stage, the first of which is 0."""
        most = self.survivors[stage]
        if stage == len(self.survivors) - 1:
            return most
        return min(most, max(self.survivors[-2], -(-alive // 2)))

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.survivors) or not self.rows:
            raise ValueError("every stage has rows and survivors")
        if any(a >= b for a, b in zip((0, *self.rows), self.rows, strict=False)):
            raise ValueError(f"rows must rise from above zero, got {self.rows}")
        if any(a <= b for a, b in zip(self.survivors, self.survivors[1:], strict=False)):
            raise ValueError(f"survivors must fall, got {self.survivors}")
        if self.survivors[-1] != 1:
            raise ValueError(f"one candidate survives the last stage, not {self.survivors[-1]}")


def look_up_all(candidates: Ints, scorer: Scorer, *, rows: int = SCORE_ROWS) -> Lookup:
    """Score every candidate on every row: C times ``rows`` losses.

    Parameters
    ----------
    candidates : (C,) array
        Places in the bank, at least one.
    scorer : Scorer
        The job's base model on the job's rows.
    rows : int
        Rows of a score.

    Raises
    ------
    ValueError
        Without candidates, or when no loss is a number.
    """
    best, score = _best_of(candidates, _mean_losses(scorer(_some(candidates), range(rows))))
    return Lookup(best, score, len(candidates) * rows)


def look_up_two_layers(bank: PromptBank, scorer: Scorer, *, rows: int = SCORE_ROWS) -> Lookup:
    """Score the medoids, then the members of the best one's cluster (figure 5a).

    Parameters
    ----------
    bank : PromptBank
        Its clusters.
    scorer, rows
        As in :func:`look_up_all`.

    Returns
    -------
    Lookup
        K + |cluster| scores: K + C / K only if clusters are of one size, which they are not,
        and at best a saving of sqrt(C) / 2 (27 times for 3,000 candidates, not the 40 of the
        text).

    Raises
    ------
    ValueError
        When no medoid, or no member of the cluster found, has a loss that is a number.
    """
    first = _mean_losses(scorer(bank.medoids, range(rows)))
    medoid, _ = _best_of(bank.medoids, first)
    members = bank.members_of(int(bank.cluster_of[medoid]))
    # The medoid's score is known.
    others = members[members != medoid]
    second = np.full(len(members), float(first[bank.medoids == medoid][0]))
    if len(others):
        second[members != medoid] = _mean_losses(scorer(others, range(rows)))
    best, score = _best_of(members, second)
    return Lookup(best, score, (len(bank.medoids) + len(others)) * rows)


def look_up_by_halving(
    candidates: Ints, scorer: Scorer, *, rules: HalvingRules | None = None
) -> Lookup:
    """Score all candidates on one row, those that survive on more.

    Parameters
    ----------
    candidates : (C,) array
        Places in the bank, at least one.
    scorer : Scorer
        As in :func:`look_up_all`; rows scored once are not scored again.
    rules : HalvingRules, optional
        By default 1, 4 and 16 rows with 60, 15 and 1 survivors: C + 360 losses for at least
        120 candidates, a ninth of the brute force's 16 C from 463 candidates on, and 330 for 60.

    Raises
    ------
    ValueError
        Without candidates, or when no candidate has a loss that is a number.

    References
    ----------
    Jamieson and Talwalkar (2016), Non-stochastic best arm identification and hyperparameter
    optimization. Not in the paper: it needs no clusters, so nothing is rebuilt when a prompt
    comes or goes, and no medoid stands for prompts that it says little about.
    """
    rules = rules or HalvingRules()
    alive = _some(candidates)
    sums = np.zeros(len(alive))
    done = scored = 0
    for stage, rows in enumerate(rules.rows):
        survivors = rules.count_survivors(stage, len(alive))
        losses = scorer(alive, range(done, rows))
        scored += losses.size
        # A loss that is not a number stays one in the sum: the candidate comes last.
        sums = sums + losses.sum(axis=1)
        done = rows
        order = np.argsort(np.where(np.isfinite(sums), sums, np.inf), kind="stable")[:survivors]
        # Survivors in the order of the bank, so that ties fall to the first.
        order = np.sort(order)
        alive, sums = alive[order], sums[order]
    best, score = _best_of(alive, sums / done)
    return Lookup(best, score, scored)


def _some(candidates: Ints) -> Ints:
    if not len(candidates):
        raise ValueError("a lookup needs at least one candidate")
    return candidates


def _mean_losses(losses: Floats) -> Floats:
    return losses.mean(axis=1)


def _best_of(candidates: Ints, scores: Floats) -> tuple[int, float]:
    """The candidate with the least score, the first among equals."""
    place = int(np.argmin(np.where(np.isfinite(scores), scores, np.inf)))
    if not math.isfinite(scores[place]):
        raise ValueError("no candidate has a loss that is a number")
    return int(candidates[place]), float(scores[place])
