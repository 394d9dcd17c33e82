"""Which jobs to merge and what each gets: Ymir's program (6)-(13), repaired and as chosen.

What is wrong in the printed program and why each repair is what it is:
``docs/algorithms/merging.md``. The program to the letter is in ``experiments/merging/printed.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scheduler.experiments.merging.fairness import compute_fair_share
from scheduler.experiments.merging.instance import Assignment, Instance, Merge, Mode
from scheduler.experiments.merging.program import Columns, choose_columns

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Form:
    """What one form of the program does differently."""

    name: str
    #: Times equation 11 counts the GPUs of a temporal pair.
    temporal_count: int
    #: Whether a temporal pair's time has the donor's in it, or is the target's alone.
    donor_counted: bool
    #: Partners each unit keeps, the best first; ``None`` for every pair that gains.
    partners: int | None
    #: Whether a pair's cost is the sum of its jobs' slowdowns, or the paper's expression.
    summed_slowdowns: bool
    #: TranWt above which a pair is taken to gain; 1 in the paper.
    least_weight: float
    #: Fair shares above which numbers of GPUs are left out; ``None`` for all.
    widest_shares: int | None
    #: Relative gap at which the solver may stop.
    gap: float


#: Only what keeps the program from running is repaired: objective and rows.
RUNNABLE = Form(
    "runnable",
    temporal_count=2,
    donor_counted=False,
    partners=None,
    summed_slowdowns=False,
    least_weight=1.0,
    widest_shares=None,
    gap=1e-4,
)
#: Equation 11 counts each GPU once, and a temporal pair takes the time of both.
REPAIRED = replace(RUNNABLE, name="repaired", temporal_count=1, donor_counted=True)
#: Top-3 partners with a margin for wrong predictions, and the sum of slowdowns throughout.
CHOSEN = replace(
    REPAIRED,
    name="chosen",
    partners=3,
    summed_slowdowns=True,
    least_weight=1.2,
    widest_shares=8,
    gap=1e-3,
)
FORMS = {form.name: form for form in (RUNNABLE, REPAIRED, CHOSEN)}


def merge_tasks(
    instance: Instance, form: Form, *, time_limit_s: float = 10.0, node_limit: int | None = None
) -> Merge:
    """Decide one interval.

    Each unit runs alone on some GPUs, runs merged with another, or waits, at a cost:
    alone its slowdown ``T_a / T_fair``; waiting ``1 + waits / T_fair``, the slowdown of
    getting its fair share after it has waited; merged by ``form``.

    Parameters
    ----------
    instance : Instance
    form : Form
        One of :data:`FORMS`.
    time_limit_s : float
        For the solver; when it runs out the best decision so far is given.
    node_limit : int, optional
        The same in nodes of the search tree, for runs that are to be repeatable.

    Returns
    -------
    Merge
        Feasible always: all may wait.
    """
    fair = compute_fair_times(instance)
    pairs = choose_partners(instance, form)
    columns, sizes = _columns(instance, form, fair, pairs)
    found = choose_columns(
        columns,
        units=len(instance.members),
        gpus=instance.gpus,
        time_limit_s=time_limit_s,
        gap=form.gap,
        node_limit=node_limit,
    )
    assignments: list[Assignment] = []
    waiting: list[int] = []
    for column in np.flatnonzero(found.picked):
        unit, partner = int(columns.first[column]), int(columns.second[column])
        if sizes.gpus[column] == 0:
            waiting.append(unit)
        elif partner < 0:
            assignments.append(Assignment(unit, None, Mode.NORMAL, int(sizes.gpus[column])))
        else:
            mode = Mode.SPATIAL if sizes.spatial[column] else Mode.TEMPORAL
            assignments.append(Assignment(unit, partner, mode, int(sizes.gpus[column])))
    return Merge(
        assignments=tuple(assignments),
        waiting=tuple(waiting),
        objective=found.objective,
        bound=found.bound,
        optimal=found.optimal,
        feasible=True,
        columns=len(columns),
        pairs=len(pairs),
    )


def compute_fair_times(instance: Instance) -> Floats:
    """Seconds each unit would need with its members' fair share of GPUs, ``[N]``."""
    share = compute_fair_share(instance.gpus, instance.jobs)
    at = _at_most(instance.allocations, np.isfinite(instance.times_s), share * instance.members)
    return instance.times_s[np.arange(len(at)), at]


def transfer_weights(instance: Instance) -> Floats:
    """How much sooner a merged pair is done than its jobs shortest first, ``[P, A]``.

    TranWt of equations 12 (temporal) and 13 (spatial); zero where the pair cannot run.
    """
    first, second = instance.times_s[instance.first], instance.times_s[instance.second]
    shortest_first = 2.0 * np.minimum(first, second) + np.maximum(first, second)
    together = np.where(
        instance.spatial[:, None], 2.0 * instance.pair_s, 2.0 * first + instance.pair_s
    )
    runs = np.isfinite(shortest_first) & np.isfinite(together)
    return np.divide(
        shortest_first, together, out=np.zeros_like(together), where=runs & (together > 0)
    )


def choose_partners(instance: Instance, form: Form) -> Ints:
    """Pairs the program is given: those that gain, each unit's best first, ``[pairs]``.

    A pair gains where TranWt is above ``form.least_weight`` (section 5.2). That alone leaves so
    many pairs that 240 jobs take the solver most of a minute. So ``form.partners`` keeps only the
    best donors of each target and the best partners of each unit, by TranWt on two fair shares.
    """
    if not len(instance.first):
        return np.zeros(0, np.int64)
    weights = transfer_weights(instance)
    if form.partners is None:
        return np.flatnonzero((weights > form.least_weight).any(axis=1))
    share = 2 * compute_fair_share(instance.gpus, instance.jobs)
    nearest = max(int(np.searchsorted(instance.allocations, share, side="right")) - 1, 0)
    here = weights[:, nearest]
    # Jobs of another set of numbers may not run on this one; their best stands in.
    here = np.where(here > 0, here, weights.max(axis=1))
    gaining = np.flatnonzero(here > form.least_weight)
    keep = _best_of_each(gaining, instance.second[gaining], here[gaining], form.partners)
    together = gaining[instance.spatial[gaining]]
    other = _best_of_each(together, instance.first[together], here[together], form.partners)
    return np.union1d(keep, other)


def _best_of_each(pairs: Ints, owner: Ints, weight: Floats, partners: int) -> Ints:
    """The pairs with the largest weights of each owner."""
    order = np.lexsort((-weight, owner))
    owner = owner[order]
    place = np.arange(len(order))
    begins = np.r_[True, owner[1:] != owner[:-1]][: len(order)]
    rank = place - np.maximum.accumulate(np.where(begins, place, 0))
    return pairs[order[rank < partners]]


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What the columns mean: GPUs really taken and whether spatial, ``[C]``."""

    gpus: Ints
    spatial: Bools


def _columns(instance: Instance, form: Form, fair: Floats, pairs: Ints) -> tuple[Columns, _Sizes]:
    allocations = instance.allocations
    share = compute_fair_share(instance.gpus, instance.jobs)
    usable = allocations <= instance.gpus
    if form.widest_shares is not None:
        usable &= allocations <= max(form.widest_shares * share, int(allocations[0]))
    units = np.arange(len(instance.members))
    waits = instance.members * (1.0 + (instance.waited_s + instance.wait_s) / fair)
    waits = waits + np.where(instance.held > 0, instance.switch_s / fair, 0.0)

    changed = instance.held[:, None] != allocations[None, :]
    alone = instance.times_s + instance.switch_s * changed
    slowdown = instance.members[:, None] * alone / fair[:, None]
    i, a = np.nonzero(np.isfinite(slowdown) & usable[None, :])

    weights = transfer_weights(instance)[pairs]
    cost = _pair_costs(instance, form, fair, pairs, weights)
    p, b = np.nonzero((weights > form.least_weight) & np.isfinite(cost) & usable[None, :])
    spatial = instance.spatial[pairs[p]]
    taken = allocations[b]
    columns = Columns(
        cost=np.r_[waits, slowdown[i, a], cost[p, b]],
        gpus=np.r_[
            np.zeros_like(units),
            allocations[a],
            np.where(spatial, taken, form.temporal_count * taken),
        ],
        first=np.r_[units, i, instance.first[pairs[p]]],
        second=np.r_[np.full(len(units) + len(i), -1), instance.second[pairs[p]]],
    )
    sizes = _Sizes(
        gpus=np.r_[np.zeros_like(units), allocations[a], taken],
        spatial=np.r_[np.zeros(len(units) + len(i), np.bool_), spatial],
    )
    return columns, sizes


def _pair_costs(
    instance: Instance, form: Form, fair: Floats, pairs: Ints, weights: Floats
) -> Floats:
    first, second = instance.first[pairs], instance.second[pairs]
    spatial = instance.spatial[pairs][:, None]
    target = instance.pair_s[pairs]
    donor = instance.times_s[first] + instance.switch_s * (
        instance.held[first][:, None] != instance.allocations[None, :]
    )
    if form.summed_slowdowns:
        # The donor is done before the target begins; of a spatial pair both end together.
        ends = np.where(spatial, target + instance.switch_s, donor + target)
        sooner = np.where(spatial, ends, donor)
        return sooner / fair[first][:, None] + ends / fair[second][:, None]
    whole = donor + target if form.donor_counted else target
    whole = np.where(spatial, target, whole)
    runs = np.isfinite(whole)
    share = np.full(len(whole), 2 * compute_fair_share(instance.gpus, instance.jobs))
    at = _at_most(instance.allocations, runs, share)
    fair_whole = whole[np.arange(len(whole)), at][:, None]
    return np.divide(
        2.0 * whole,
        fair_whole * weights,
        out=np.full_like(whole, np.inf),
        where=runs & (weights > 0) & (fair_whole > 0),
    )


def _at_most(allocations: Ints, runs: Bools, gpus: Ints) -> Ints:
    """Index of the most GPUs up to a number on which each row runs, else of the fewest."""
    within = runs & (allocations[None, :] <= gpus[:, None])
    last: Ints = len(allocations) - 1 - np.argmax(within[:, ::-1], axis=1)
    fewest: Ints = np.argmax(runs, axis=1)
    return np.where(within.any(axis=1), last, fewest)
