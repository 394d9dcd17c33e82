"""One day under one policy or baseline."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.log import events
from scheduler.auction.log.outcomes import Outcome
from scheduler.auction.prices import Settings
from scheduler.auction.prices.worths import price_task, show_outcome
from scheduler.experiments.auction.baselines import earliest_finish, no_merging, titan
from scheduler.experiments.auction.beats import (
    DecidedDay,
    SimulatedBeats,
    join_for_a_day,
    list_beats,
    list_past_bids,
    make_day_rules,
)
from scheduler.experiments.auction.bounds import make_capacity
from scheduler.experiments.auction.max_form.engine import make_engine
from scheduler.experiments.auction.max_form.policies import max_form_rules
from scheduler.experiments.auction.scenario import Scenario
from scheduler.types import Beat, Decision, Task


@dataclass(frozen=True, slots=True)
class DayResult:
    """What a day came to."""

    welfare: float
    admitted: int
    bids: int
    #: Sum of payments; 0 for baselines, which set no prices.
    revenue: float
    #: CPU seconds, solves included.
    seconds: float
    decisions: list[Decision] = field(default_factory=list[Decision], repr=False)


def make_rules(scenario: Scenario, policy: str) -> ZoneRules:
    """Give a zone's rules for one day, nothing sold beyond its end."""
    return ZoneRules(
        policy=policy,
        base_memory=scenario.base_memory_gb,
        horizon_slots=scenario.slots,
        refusal_hints=False,
        settings={} if policy == "lagrangian" else max_form_rules(steepness=0.1),
    )


def run_policy(
    scenario: Scenario,
    tasks: Sequence[Task],
    *,
    rules: ZoneRules,
    past_days: Sequence[DecidedDay] = (),
    seed: int = 0,
    settings: Settings | None = None,
    most_held: float = inf,
    returned: Collection[str] = frozenset(),
    cancelled: Collection[str] = frozenset(),
    at_price: Collection[str] = frozenset(),
    look: Callable[[Engine, Task, int], None] | None = None,
    act: Callable[[Engine, int, Outcome], None] | None = None,
) -> DayResult:
    """Run the engine over a day's bids.

    Parameters
    ----------
    scenario : Scenario
    tasks : sequence of Task
        In order of arrival.
    rules : ZoneRules
    past_days : sequence of DecidedDay
        The latest first (``decide_days``).
    seed : int
    settings : Settings, optional
        Of the solves.
    most_held : float
        Samples that one owner may hold; its bids beyond it are turned away before they
        reach the auction.
    returned : collection of str
        Ids of bids whose cells go back on sale as soon as they are won: all that they do to
        prices is done, and they take no room.
    cancelled : collection of str
        Ids of bids whose jobs are cancelled as soon as they are won: their price goes back,
        and they count as if refused.
    at_price : collection of str
        Ids of bids that offer what they would pay, whatever that is, and so are refused.
    look : callable, optional
        Called with the engine before each bid is decided, and the slot under way; it changes
        nothing.
    act : callable, optional
        Called with the engine as each slot begins, the slot and what its begin came to; what it
        buys is none of the day's.
    """
    solves = rules.policy == "lagrangian"
    tasks = list(tasks)
    if solves:
        rules = make_day_rules(
            rules,
            slots=scenario.slots,
            past_days=len(past_days),
            seed=seed,
            settings=settings,
        )
    engine = make_engine(rules)
    join_for_a_day(engine, scenario.fleet(), slots=scenario.slots)
    start = time.process_time()
    decisions: list[Decision] = []
    welfare = revenue = 0.0
    held: defaultdict[str, float] = defaultdict(float)
    seen, won = list_past_bids(past_days, slots=scenario.slots)
    beats = SimulatedBeats(engine, engine.transition, seen, won)
    if solves:
        # As in a market that is open, prices have been solved before the first bid.
        beats.reach(Beat(-2, rules.beats_per_slot - 1))
    for beat, part in list_beats(tasks, rules if solves else replace(rules, beats_per_slot=1)):
        slot = beat.slot
        if solves:
            begun = beats.reach(beat)
        else:
            slot += 1
            begun = engine.transition(events.SlotAdvanced(slot))
        if act is not None and beat.part == 0:
            act(engine, slot, begun)
        for task in part:
            if task.owner and held[task.owner] + task.compute_demand > most_held:
                decisions.append(_turn_away(task))
                continue
            if task.id in at_price:
                price = engine.quote(task, slot=slot).price
                task = replace(task, bid=price or 0.0)
            if look is not None:
                look(engine, task, slot)
            decision = engine.transition(events.BidArrived(task, slot))
            assert isinstance(decision, Decision)
            seen.append(show_outcome(task, decision))
            decisions.append(decision)
            if not decision.admitted or decision.parts is None:
                continue
            held[task.owner] += task.compute_demand
            won.add(task.id)
            welfare += task.bid - decision.parts.vendor - decision.parts.operational
            revenue += decision.payment
            if task.id in cancelled:
                won.discard(task.id)
                seen[-1] = price_task(task, None)
            if decision.schedule is not None and (task.id in returned or task.id in cancelled):
                engine.transition(events.CellsReleased(task.id, decision.schedule.cells))
    by_id = {decision.task_id: decision for decision in decisions}
    return DayResult(
        welfare=welfare,
        admitted=sum(d.admitted for d in decisions),
        bids=len(tasks),
        revenue=revenue,
        seconds=time.process_time() - start,
        # Beats decide the bids of a slot in an order of their own.
        decisions=[by_id[task.id] for task in tasks],
    )


def decide_days(
    scenario: Scenario,
    days: Sequence[Sequence[Task]],
    *,
    rules: ZoneRules,
    seed: int = 0,
    settings: Settings | None = None,
) -> list[DecidedDay]:
    """Give what became of past days, each sold as a first day; bids get ids of their own."""
    found = list[DecidedDay]()
    for back, given in enumerate(days, start=1):
        tasks = [replace(task, id=f"{back} days before {task.id}") for task in given]
        day = run_policy(scenario, tasks, rules=rules, seed=seed, settings=settings)
        pairs = list(zip(tasks, day.decisions, strict=True))
        found.append(
            DecidedDay(
                bids=[show_outcome(task, decision) for task, decision in pairs],
                won=frozenset(task.id for task, decision in pairs if decision.admitted),
            )
        )
    return found


def _turn_away(task: Task) -> Decision:
    return Decision(
        task_id=task.id, admitted=False, payment=0.0, surplus=None, schedule=None, parts=None
    )


def run_baseline(
    name: str, scenario: Scenario, tasks: Sequence[Task], *, seed: int, time_limit_s: float
) -> DayResult:
    """Run ``eft``, ``ntm`` or ``titan`` over a day's bids.

    Raises
    ------
    ValueError
        If there is no such baseline.
    """
    supply = make_capacity(
        scenario.fleet(),
        base_memory=scenario.base_memory_gb,
        first_slot=0,
        slots=scenario.slots,
    )
    start = time.process_time()
    if name == "eft":
        outcome = earliest_finish(tasks, supply)
    elif name == "ntm":
        outcome = no_merging(tasks, supply, seed=seed)
    elif name == "titan":
        outcome = titan(tasks, supply, seed=seed, time_limit_s=time_limit_s)
    else:
        raise ValueError(f"unknown baseline {name!r}: choose eft, ntm or titan")
    return DayResult(
        welfare=outcome.welfare,
        admitted=len(outcome.served),
        bids=len(tasks),
        revenue=0.0,
        seconds=time.process_time() - start,
    )
