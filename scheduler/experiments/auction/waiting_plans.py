"""Plans that have not started, made again at later prices: what that is worth in welfare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.auction import Engine
from scheduler.auction.log import events
from scheduler.auction.prices.worths import show_outcome
from scheduler.auction.search.room import PromisedJob
from scheduler.experiments.auction.beats import (
    DecidedDay,
    SimulatedBeats,
    join_for_a_day,
    list_beats,
    list_past_bids,
    make_day_rules,
)
from scheduler.experiments.auction.cheaper_plans import find_cheaper_plans
from scheduler.experiments.auction.run import make_rules
from scheduler.experiments.auction.scenario import Scenario
from scheduler.types import Decision, Task


@dataclass(frozen=True, slots=True)
class WaitingDay:
    """What a day came to."""

    welfare: float
    revenue: float
    admitted: int
    #: Plans made again.
    moved: int


def run_day(
    scenario: Scenario,
    tasks: Sequence[Task],
    *,
    past_days: Sequence[DecidedDay],
    seed: int,
    improves: bool | None,
) -> WaitingDay:
    """Sell a day under ``lagrangian``, with waiting plans made again after each solve.

    ``improves`` says whether they may end later than planned; ``None`` leaves them as they are.
    Welfare counts asks of the cells that jobs end up in. No job asks for cleaning.
    """
    rules = make_day_rules(
        make_rules(scenario, "lagrangian"),
        slots=scenario.slots,
        past_days=len(past_days),
        seed=seed,
    )
    engine = Engine(rules)
    join_for_a_day(engine, scenario.fleet(), slots=scenario.slots)
    admitted: dict[str, tuple[Task, Decision]] = {}
    asked: dict[str, float] = {}
    revenue, moved = 0.0, 0
    seen, won = list_past_bids(past_days, slots=scenario.slots)
    beats = SimulatedBeats(engine, engine.transition, seen, won)
    for beat, part in list_beats(tasks, rules):
        beats.reach(beat)
        if improves is not None:
            for move in _improve(engine, admitted, beat.slot + 1, ends_later=improves):
                moved += 1
                asked[move.task_id] = _sum_asks(engine, move)
        for task in part:
            decision = engine.transition(events.BidArrived(task, beat.slot))
            assert isinstance(decision, Decision)
            seen.append(show_outcome(task, decision))
            if decision.admitted and decision.parts is not None:
                won.add(task.id)
                admitted[task.id] = (task, decision)
                asked[task.id] = decision.parts.operational
                revenue += decision.payment
    welfare = sum(task.bid - asked[task.id] for task, _ in admitted.values())
    return WaitingDay(welfare, revenue, len(admitted), moved)


def _sum_asks(engine: Engine, move: events.PlanMove) -> float:
    """Give what the nodes of a plan ask for it."""
    nodes = {node.id: node for node in engine.nodes}
    return sum(
        node.ask * move.rates[node.gpu_type] / node.compute_capacity
        for node in (nodes[cell.node] for cell in move.cells)
    )


def _improve(
    engine: Engine, admitted: dict[str, tuple[Task, Decision]], slot: int, *, ends_later: bool
) -> tuple[events.PlanMove, ...]:
    """Move the plans that begin in a later slot."""
    held = {one.task_id for one in engine.reservations()}
    waiting = [
        PromisedJob(
            task_id=task_id,
            deadline_slot=task.deadline_slot,
            compute_demand=task.compute_demand,
            memory_demand=task.memory_demand,
            rates=task.rates,
        )
        for task_id, (task, decision) in admitted.items()
        if task_id in held and decision.schedule is not None and decision.schedule.start_slot > slot
    ]
    return find_cheaper_plans(engine, jobs=waiting, slot=slot + 1, ends_later=ends_later)
