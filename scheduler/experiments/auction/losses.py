"""Node losses: how many promises each way of planning again keeps, and at what cost.

A small zone sells a day under ``lagrangian``. In the middle of it a node is lost; every admitted
job that has not ended is a live promise. From the same state each method makes its plans, and a
promise counts as kept if all the work that is left is planned by the deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from scheduler.auction import Engine
from scheduler.auction.joint.least_laxity import JointPlan, plan_by_laxity
from scheduler.auction.log import events
from scheduler.auction.log.outcomes import Replan
from scheduler.auction.prices.worths import show_outcome
from scheduler.auction.search.room import PromisedJob
from scheduler.experiments.auction.beats import (
    SimulatedBeats,
    join_for_a_day,
    list_beats,
    list_past_bids,
    make_day_rules,
)
from scheduler.experiments.auction.exact_replans import plan_exactly
from scheduler.experiments.auction.run import decide_days, make_rules
from scheduler.experiments.auction.scenario import Scenario
from scheduler.types import Cell, Decision, Task

#: Slots of a day; losses fall between the first and the last third.
SLOTS = 48


@dataclass(frozen=True, slots=True)
class Loss:
    """A zone at the moment in which a node has been lost."""

    engine: Engine
    #: First slot whose cells may change.
    slot: int
    #: Promises hit, and the others; those of the latter that have not started.
    hit: list[PromisedJob]
    unhit: list[PromisedJob]
    unstarted: list[PromisedJob]

    @property
    def live(self) -> int:
        return len(self.hit) + len(self.unhit)


@dataclass(slots=True)
class MethodTally:
    """What a method came to over many losses."""

    kept: int = 0
    #: Losses after which every promise is kept.
    whole: int = 0
    seconds: list[float] = field(default_factory=list[float])


#: Gives how many of the promises hit a method keeps; it breaks no other.
Method = Callable[[Loss], int]


def make_losses(count: int, *, seed: int = 0) -> list[Loss]:
    """Make zones of 3 to 8 nodes that lose one, each in the middle of a day of its own."""
    rng = np.random.default_rng([seed, 64])
    losses: list[Loss] = []
    while len(losses) < count:
        nodes = int(rng.integers(3, 9))
        scenario = Scenario(
            f"{nodes} nodes",
            slots=SLOTS,
            nodes=nodes,
            bids_per_slot=nodes * float(rng.uniform(0.15, 0.45)),
            cleaning_share=0.0,
        )
        at = int(rng.integers(SLOTS // 3, 2 * SLOTS // 3))
        loss = _lose_node(
            scenario, at, node=int(rng.integers(nodes)), seed=len(losses) + 1000 * seed
        )
        if loss.hit:
            losses.append(loss)
    return losses


def _lose_node(scenario: Scenario, at: int, *, node: int, seed: int) -> Loss:
    tasks = scenario.day(seed)
    rules = make_day_rules(make_rules(scenario, "lagrangian"), slots=SLOTS, past_days=1, seed=seed)
    engine = Engine(rules)
    join_for_a_day(engine, scenario.fleet(), slots=SLOTS)
    admitted: dict[str, Decision] = {}
    past = decide_days(
        scenario, [scenario.day(10_000 + seed)], rules=make_rules(scenario, "lagrangian"), seed=seed
    )
    seen, won = list_past_bids(past, slots=SLOTS)
    beats = SimulatedBeats(engine, engine.transition, seen, won)
    for beat, part in list_beats([task for task in tasks if task.arrival_slot <= at], rules):
        beats.reach(beat)
        for task in part:
            decision = engine.transition(events.BidArrived(task, beat.slot))
            assert isinstance(decision, Decision)
            seen.append(show_outcome(task, decision))
            if decision.admitted:
                won.add(task.id)
                admitted[task.id] = decision
    types = {one.id: one.gpu_type for one in engine.nodes}
    engine.transition(events.SlotAdvanced(at))
    lost = scenario.fleet()[node].id
    engine.transition(events.NodeLeft(lost, at))
    found = Loss(engine, at + 1, [], [], [])
    by_id = {task.id: task for task in tasks}
    for task_id, decision in admitted.items():
        assert decision.schedule is not None
        cells = decision.schedule.cells
        if cells[-1].slot < at:
            continue
        _file(found, by_id[task_id], cells, types, lost=lost, at=at)
    return found


def _file(
    found: Loss, task: Task, cells: tuple[Cell, ...], types: dict[str, str], *, lost: str, at: int
) -> None:
    """Put a live promise where it belongs, with the work that is left."""
    done = sum(task.rates[types[cell.node]] for cell in cells if cell.slot < at)
    job = PromisedJob(
        task_id=task.id,
        deadline_slot=task.deadline_slot,
        compute_demand=task.compute_demand - done,
        memory_demand=task.memory_demand,
        rates=task.rates,
    )
    if any(cell.node == lost and cell.slot >= at for cell in cells):
        found.hit.append(job)
        return
    if cells[-1].slot == at:
        # It ends in the slot that runs now.
        return
    # What runs now still does its present cell.
    now = sum(task.rates[types[cell.node]] for cell in cells if cell.slot == at)
    found.unhit.append(replace(job, compute_demand=job.compute_demand - now))
    if cells[0].slot > at:
        found.unstarted.append(job)


def keep_one_by_one(loss: Loss, *, tolerance: float | None = None) -> int:
    """Plan jobs again one after the other, the earliest deadline first."""
    engine, kept = loss.engine.replica(), 0
    for job in sorted(loss.hit, key=lambda job: (job.deadline_slot, job.task_id)):
        task = Task(
            id=job.task_id,
            arrival_slot=loss.slot,
            deadline_slot=job.deadline_slot,
            compute_demand=job.compute_demand,
            memory_demand=job.memory_demand,
            bid=0.0,
            rates=job.rates,
        )
        outcome = engine.transition(events.TaskReplanned(task, loss.slot, tolerance=tolerance))
        assert isinstance(outcome, Replan)
        kept += outcome.complete and not outcome.late
    return kept


def _take(loss: Loss, plan: JointPlan) -> int:
    """Have the engine check a plan; give the promises it keeps."""
    if plan.moves:
        loss.engine.replica().transition(events.PlansMoved(plan.moves, loss.slot, plan.given_up))
    return plan.kept


def keep_by_laxity(loss: Loss, movable: Sequence[PromisedJob]) -> int:
    return _take(loss, plan_by_laxity(loss.engine, lost=loss.hit, movable=movable, slot=loss.slot))


def keep_exactly(loss: Loss, movable: Sequence[PromisedJob]) -> int:
    """Swap at once, then the integer program, taken if it keeps more."""
    swapped = plan_by_laxity(loss.engine, lost=loss.hit, movable=movable, slot=loss.slot)
    if swapped.kept == len(loss.hit):
        return _take(loss, swapped)
    exact = plan_exactly(loss.engine, lost=loss.hit, movable=movable, slot=loss.slot).plan
    return _take(loss, max(exact, swapped, key=lambda plan: plan.kept))


def bound_kept(loss: Loss, *, time_limit_s: float) -> int:
    """Give how many of the promises hit any plan can keep, at most, every job moving."""
    return plan_exactly(
        loss.engine, lost=loss.hit, movable=loss.unhit, slot=loss.slot, time_limit_s=time_limit_s
    ).bound


METHODS: dict[str, Method] = {
    "one by one, the cheapest plan": keep_one_by_one,
    "one by one, the soonest within 10 %": lambda loss: keep_one_by_one(loss, tolerance=0.1),
    "least laxity, only those hit": lambda loss: keep_by_laxity(loss, ()),
    "with swaps, jobs not started may move": lambda loss: keep_by_laxity(loss, loss.unstarted),
    "with swaps, every job may move": lambda loss: keep_by_laxity(loss, loss.unhit),
    "then exact, jobs not started may move": lambda loss: keep_exactly(loss, loss.unstarted),
    "then exact, every job may move": lambda loss: keep_exactly(loss, loss.unhit),
}


def compare_methods(losses: Sequence[Loss]) -> dict[str, MethodTally]:
    """Run every method on every loss."""
    tallies = {name: MethodTally() for name in METHODS}
    for loss in losses:
        for name, method in METHODS.items():
            start = time.perf_counter()
            kept = method(loss)
            tally = tallies[name]
            tally.seconds.append(time.perf_counter() - start)
            tally.kept += kept
            tally.whole += kept == len(loss.hit)
    return tallies
