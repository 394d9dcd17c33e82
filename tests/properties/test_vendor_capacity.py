"""Vendors with a limit: chosen exactly, never overbooked, and the same in every replay."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.audit.transcripts import verify_transcript, write_transcript_lines
from scheduler.auction.audit.verify import verify
from scheduler.auction.log import events
from scheduler.auction.log.outcomes import Replan
from scheduler.auction.search.grid import Grid
from scheduler.auction.search.vendor_book import VendorBook
from scheduler.experiments.auction.reference import search_by_enumeration
from scheduler.types import Decision, LaborVendor, NodeSpec, Task, VendorCapacity
from tests.properties.auction_cases import AMOUNTS, grids_with_tasks, lay_out
from tests.unit.scheduler.auction.builders import enter

VENDORS = ("quick", "cheap", "idle")


@st.composite
def busy_vendors(draw: st.DrawFn) -> tuple[Grid, Task]:
    """Draw a task with offers, in a zone whose vendors have some work."""
    grid, task = draw(grids_with_tasks(most_nodes=2))
    for name in VENDORS:
        grid.vendors.capacity[name] = draw(st.integers(0, 4))
        grid.vendors.used[name] = {
            grid.first_slot + row: draw(st.integers(0, 4)) for row in range(grid.slots)
        }
    offers = tuple(
        LaborVendor(
            id=name,
            price=draw(AMOUNTS),
            delay_slots=draw(st.integers(1, 3)),
            load=draw(st.integers(1, 3)),
        )
        for name in VENDORS[: draw(st.integers(1, 3))]
    )
    return grid, replace(task, vendors=offers)


def price_by_trying_all(grid: Grid, task: Task) -> float:
    """Try every vendor in every run of slots with room for it, and then every schedule."""
    last = grid.horizon.last_slot
    best = math.inf
    for offer in task.vendors:
        used, most = grid.vendors.used[offer.id], grid.vendors.capacity[offer.id]
        for start in range(max(grid.first_slot, task.arrival_slot), last + 1):
            work = range(start, start + offer.delay_slots)
            if any(used.get(slot, 0) + offer.load > most for slot in work):
                continue
            cells = search_by_enumeration(
                grid,
                replace(task, vendors=()),
                begin=work.stop,
                deadline=min(task.deadline_slot, last),
                additive=True,
                residual=True,
            )
            best = min(best, offer.price + cells)
    return best


@settings(max_examples=60, deadline=None)
@given(case=busy_vendors())
def test_vendor_and_schedule_are_the_best_of_all_vendors_starts_and_schedules(
    case: tuple[Grid, Task],
) -> None:
    grid, task = case
    plan = lay_out(grid, task, additive=True).find_plan(task.deadline_slot)
    least = price_by_trying_all(grid, task)
    if plan is None:
        assert least == math.inf
        return
    assert math.isclose(plan.price, least, rel_tol=1e-9, abs_tol=1e-9)
    offer, ready = task.vendors[plan.schedule.vendor], plan.schedule.ready_slot
    assert ready is not None
    assert plan.schedule.start_slot >= ready
    grid.vendors.reserve(task.id, offer, ready=ready)
    used = grid.vendors.used[offer.id]
    begun = range(ready - offer.delay_slots, ready)
    assert all(used[slot] <= grid.vendors.capacity[offer.id] for slot in begun)


def _rules() -> ZoneRules:
    return ZoneRules(horizon_slots=8, money_quantum=1.0, settings={"growth": 0.5})


def _draw_task(rng: Random, name: str, slot: int) -> Task:
    offers = tuple(
        LaborVendor(vendor, float(rng.randint(0, 9)), rng.randint(1, 3), rng.randint(1, 4))
        for vendor in rng.sample(VENDORS, rng.randint(0, 3))
    )
    return Task(
        id=name,
        arrival_slot=slot + 1,
        deadline_slot=slot + rng.randint(2, 7),
        compute_demand=float(rng.randint(1, 12)),
        memory_demand=1.0,
        bid=float(rng.randint(1, 60)),
        rates={"g": 4.0},
        vendors=offers,
    )


def _draw_event(rng: Random, engine: Engine, tasks: dict[str, Task], slot: int) -> events.Event:
    kind = rng.choices(("bid", "slot", "vendor", "end", "replan"), weights=(10, 3, 2, 2, 2))[0]
    held = sorted({one.task_id for one in engine.reservations()})
    if kind == "slot":
        return events.SlotAdvanced(slot + rng.choice([1, 1, 2]))
    if kind == "vendor":
        return events.VendorChanged(VendorCapacity(rng.choice(VENDORS), rng.randint(0, 6)))
    if kind == "end" and held:
        return events.PreparationEnded(rng.choice(held), slot + rng.randint(0, 2))
    if kind == "replan" and held:
        task = tasks[rng.choice(held)]
        offers = task.vendors if rng.random() < 0.5 else ()
        return events.TaskReplanned(replace(task, arrival_slot=slot + 1, vendors=offers), slot + 1)
    name = f"task-{len(tasks)}"
    tasks[name] = _draw_task(rng, name, slot)
    return events.BidArrived(tasks[name], slot)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_no_vendor_is_overbooked_and_every_replay_agrees(seed: int) -> None:
    rng = Random(seed)
    engine = Engine(_rules())
    log = [
        engine.apply(events.NodeJoined(NodeSpec("n", "g", 8.0, 8.0, ask=float(rng.randint(0, 9)))))
    ]
    log += [engine.apply(events.VendorChanged(VendorCapacity(name, 4))) for name in VENDORS]
    tasks: dict[str, Task] = {}
    slot = 0
    middle = engine.snapshot()
    for step in range(40):
        before = engine._zone.grid.vendors.copy()
        event = _draw_event(rng, engine, tasks, slot)
        slot = event.slot if isinstance(event, events.SlotAdvanced) else slot
        log += enter(engine, event)
        entry = log[-1]
        _check_vendors(before, engine, entry.event, entry.outcome)
        if step == 20:
            middle, at = engine.snapshot(), len(log)
    assert verify(log, rules=_rules()).ok
    resumed = Engine.restore(json.loads(json.dumps(middle)))
    for entry in log[at:]:
        resumed.retrace(entry.event, entry.outcome, entry_hash=entry.hash)
    assert json.dumps(resumed.snapshot()) == json.dumps(engine.snapshot())
    published = list(write_transcript_lines(log, rules=_rules(), shows=lambda _: False))
    assert verify_transcript(published).ok


def _check_vendors(
    before: VendorBook, engine: Engine, event: events.Event, outcome: object
) -> None:
    """What was given out is within the vendor's capacity, and no cell comes before its end."""
    book = engine._zone.grid.vendors
    if isinstance(event, events.BidArrived | events.TaskReplanned):
        for vendor, slots in book.used.items():
            had = before.used.get(vendor, {})
            for slot, units in slots.items():
                assert units <= max(book.capacity[vendor], had.get(slot, 0))
    if isinstance(outcome, Decision | Replan) and outcome.schedule is not None:
        ready = book.find_end(outcome.task_id)
        if ready is not None and (isinstance(outcome, Replan) or outcome.admitted):
            assert outcome.schedule.start_slot >= ready
