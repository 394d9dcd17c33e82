"""Who gets which GPUs: Ymir's forms, and the schedulers it is compared with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.experiments.merging.cluster import Merging, MergingPlan, View
from scheduler.experiments.merging.estimates import list_allocations
from scheduler.experiments.merging.instance import Instance, Mode
from scheduler.experiments.merging.program import Columns, choose_by_price
from scheduler.experiments.merging.task_merger import CHOSEN, REPAIRED, RUNNABLE, Form, merge_tasks
from scheduler.experiments.merging.transfer import TransferShares

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: GPU seconds after which Tiresias puts a job into its lower queue.
TIRESIAS_QUEUE_GPU_S = 3600.0
#: Seconds Themis leaves a job its GPUs.
THEMIS_LEASE_S = 600.0
#: Units the program is given at most, as a multiple of the GPUs.
WINDOW = 1.25
#: Seconds a unit that gets nothing is taken to wait: mean completion times differ by less
#: than a tenth between 300 and 7200.
WAIT_S = 1800.0
#: Context switch of a stock runtime and of a runtime that is reused, seconds.
COLD_SWITCH_S, WARM_SWITCH_S = 70.0, 20.0
Decide = Callable[[View, TransferShares], MergingPlan]


@dataclass(frozen=True, slots=True)
class Policy:
    """A scheduler."""

    name: str
    decide: Decide
    #: Seconds between decisions.
    interval_s: float
    #: Pause of a unit whose GPUs change.
    switch_s: float
    #: Seconds a new job runs on one GPU before it can be scheduled.
    profile_s: float = 0.0
    #: Share of a job after which harm is noticed; 0 for two epochs.
    noticed: float = 0.0
    #: Whether donors' B is scaled.
    scaled: bool = False
    #: Where predictions come from: ``gradient``, ``probe`` or nowhere.
    scores: str = "none"
    #: Whether new jobs start from finished ones.
    warm_starts: bool = False
    #: Whether a decision stands until a job comes or ends.
    lasting: bool = False
    #: How many donors are probed before a warm start.
    probes: int = 8


def fixed(order: Callable[[View], Floats]) -> Decide:
    """GPUs as asked for, in an order, to each job that fits; the rest waits."""

    def decide(view: View, transfer: TransferShares) -> MergingPlan:
        del transfer
        gpus = np.zeros(len(view.job), np.int64)
        left = view.gpus
        for place in np.argsort(order(view), kind="stable").tolist():
            if left <= 0:
                break
            asked = int(view.asked[place])
            if asked <= left:
                gpus[place] = asked
                left -= asked
        return MergingPlan(gpus)

    return decide


def srtf_order(view: View) -> Floats:
    """Shortest remaining time on the GPUs asked for first."""
    return _seconds(view, view.asked)


def tiresias_order(view: View) -> Floats:
    """Two queues by GPU time received, each first come first served (2D-LAS)."""
    return np.where(view.attained_s >= TIRESIAS_QUEUE_GPU_S, 1e12, 0.0) - view.age_s


def themis_order(view: View) -> Floats:
    """Farthest from its fair finish time first; leases are not broken."""
    alone = np.maximum(_seconds(view, view.asked), 1.0)
    unfair = (view.age_s + alone) / alone
    leased = (view.held > 0) & (view.holding_s < THEMIS_LEASE_S)
    return np.where(leased, -1e12, -unfair)


def optimus(view: View, transfer: TransferShares) -> MergingPlan:
    """GPUs one after another to the job whose remaining time they shorten most.

    Times fall ever more slowly with GPUs, so this is the choice by one price of a GPU.
    Jobs that would wait give the shortest remaining time precedence.
    """
    del transfer
    allocations = _ladder(view.gpus)
    times = _times(view, allocations)
    units = np.arange(len(view.job))
    i, a = np.nonzero(np.isfinite(times))
    waits = 1e9 - np.minimum(_seconds(view, np.ones_like(view.held)), 5e8)
    columns = Columns(
        cost=np.r_[waits, times[i, a]],
        gpus=np.r_[np.zeros_like(units), allocations[a]],
        first=np.r_[units, i],
        second=np.full(len(units) + len(i), -1),
    )
    picked = np.flatnonzero(choose_by_price(columns, units=len(units), gpus=view.gpus))
    gpus = np.zeros(len(units), np.int64)
    gpus[columns.first[picked]] = columns.gpus[picked]
    return MergingPlan(gpus)


@dataclass(frozen=True, slots=True)
class TaskMerger:
    """Ymir: the program of :mod:`scheduler.merging` every interval."""

    form: Form
    #: Which merges it considers.
    temporal: bool = True
    spatial: bool = True
    switch_s: float = WARM_SWITCH_S
    wait_s: float = WAIT_S

    def __call__(self, view: View, transfer: TransferShares) -> MergingPlan:
        seen = self._window(view)
        instance = self._instance(view, seen, transfer)
        started = time.perf_counter()
        found = merge_tasks(instance, self.form, time_limit_s=60.0, node_limit=20)
        solver_s = time.perf_counter() - started
        gpus = np.zeros(len(view.job), np.int64)
        merges: list[Merging] = []
        for one in found.assignments:
            unit = int(seen[one.unit])
            gpus[unit] = one.gpus
            if one.partner is not None:
                merges.append(Merging(unit, int(seen[one.partner]), one.mode is Mode.SPATIAL))
        return MergingPlan(gpus, tuple(merges), solver_s, found.optimal)

    def _window(self, view: View) -> Ints:
        """Units the program decides on: those that run, and the shortest of the others."""
        most = max(int(WINDOW * view.gpus), 16)
        if len(view.job) <= most:
            return np.arange(len(view.job))
        urgency = (view.left_s + 1.0) / (view.left_s + view.waited_s + 1.0) * view.left_s
        order = np.lexsort((urgency, view.held == 0))
        return np.sort(order[:most])

    def _instance(self, view: View, seen: Ints, transfer: TransferShares) -> Instance:
        allocations = _ladder(view.gpus)
        times = _times(view, allocations)[seen]
        first, second, spatial, seconds = self._pairs(view, seen, transfer, allocations)
        return Instance(
            gpus=view.gpus,
            allocations=allocations,
            times_s=times,
            members=view.members[seen],
            held=view.held[seen],
            waited_s=view.waited_s[seen],
            first=first,
            second=second,
            spatial=spatial,
            pair_s=seconds,
            wait_s=self.wait_s,
            switch_s=self.switch_s,
        )

    def _pairs(
        self, view: View, seen: Ints, transfer: TransferShares, allocations: Ints
    ) -> tuple[Ints, Ints, Bools, Floats]:
        """Pairs that can gain at all.

        TranWt is above 1 only where the target's share is below 1 and the donor less than
        twice as long, or where joint work is less than three quarters of both.
        """
        fresh = np.flatnonzero(view.fresh[seen])
        single = np.flatnonzero(view.members[seen] == 1)
        left, job = view.left_s[seen], view.job[seen]
        empty = np.zeros(0, np.int64)
        donor, target, one, other = empty, empty, empty, empty
        share, joint = np.zeros(0), np.zeros(0)
        if self.temporal and len(fresh):
            donor, target = (x.ravel() for x in np.meshgrid(single, fresh, indexing="ij"))
            near = (donor != target) & (left[donor] < 2.0 * left[target])
            donor, target = donor[near], target[near]
            share = transfer.predicted_shares(job[donor], job[target])
            gains = share < 1.0
            donor, target, share = donor[gains], target[gains], share[gains]
        if self.spatial and len(fresh):
            one, other = (x.ravel() for x in np.meshgrid(fresh, fresh, indexing="ij"))
            one, other = one[one < other], other[one < other]
            joint = transfer.predicted_joint_shares(job[one], job[other])
            gains = joint < 0.75
            one, other, joint = one[gains], other[gains], joint[gains]
        loss, pipeline = view.loss[seen], view.pipeline[seen]
        work = np.r_[share * left[target], joint * (left[one] + left[other])]
        lead = np.r_[target, one]
        seconds = work[:, None] * _per_gpus(loss[lead], allocations)
        whole = pipeline[np.r_[donor, one]] | pipeline[np.r_[target, other]]
        seconds[whole[:, None] & (allocations % 4 != 0)[None, :]] = np.inf
        together = np.r_[np.zeros(len(donor), np.bool_), np.ones(len(one), np.bool_)]
        return np.r_[donor, one], np.r_[target, other], together, seconds


def _ladder(gpus: int) -> Ints:
    """Numbers of GPUs in steps of about a third, up to 64 or the cluster."""
    kept: list[int] = []
    for number in list_allocations(min(gpus, 64)).tolist():
        if not kept or number >= 1.3 * kept[-1]:
            kept.append(number)
    return np.array(kept, np.int64)


def _per_gpus(loss: Floats, allocations: Ints) -> Floats:
    return (1.0 + loss[:, None] * (allocations[None, :] - 1)) / allocations[None, :]


def _times(view: View, allocations: Ints) -> Floats:
    times = view.left_s[:, None] * _per_gpus(view.loss, allocations)
    times[view.pipeline[:, None] & (allocations % 4 != 0)[None, :]] = np.inf
    return np.maximum(times, 1e-3)


def _seconds(view: View, gpus: Ints) -> Floats:
    return view.left_s * (1.0 + view.loss * (gpus - 1)) / gpus


_NONE = TaskMerger(CHOSEN, temporal=False, spatial=False)

POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("tiresias", fixed(tiresias_order), 120.0, COLD_SWITCH_S),
        Policy("srtf", fixed(srtf_order), 120.0, COLD_SWITCH_S),
        Policy("themis-like", fixed(themis_order), 120.0, COLD_SWITCH_S),
        Policy("optimus-like", optimus, 300.0, COLD_SWITCH_S, lasting=True),
        Policy("no-merging", _NONE, 120.0, WARM_SWITCH_S, lasting=True),
        Policy(
            "ymir-runnable", TaskMerger(RUNNABLE), 120.0, WARM_SWITCH_S, profile_s=60.0,
            scores="gradient", lasting=True,
        ),
        Policy(
            "ymir-repaired", TaskMerger(REPAIRED), 120.0, WARM_SWITCH_S, profile_s=60.0,
            scores="gradient", lasting=True,
        ),
        Policy(
            "ymir-temporal", TaskMerger(REPAIRED, spatial=False), 120.0, WARM_SWITCH_S,
            profile_s=60.0, scores="gradient", lasting=True,
        ),
        Policy(
            "ymir-spatial", TaskMerger(REPAIRED, temporal=False), 120.0, WARM_SWITCH_S,
            profile_s=60.0, scores="gradient", lasting=True,
        ),
        Policy(
            "ymir-chosen", TaskMerger(CHOSEN, spatial=False), 120.0, WARM_SWITCH_S,
            profile_s=2.0, noticed=0.05, scaled=True, scores="probe", lasting=True,
        ),
        Policy(
            "warm-starts", _NONE, 120.0, WARM_SWITCH_S, profile_s=2.0, noticed=0.05,
            scaled=True, scores="probe", warm_starts=True, lasting=True,
        ),
    )
}  # fmt: skip
