"""Tasks for verified nodes only: the cheapest plan on those, never a cell of another."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.auction import ChainEntry, Engine, ZoneRules, verify
from scheduler.auction.audit.verify import verify_public
from scheduler.auction.log import events
from scheduler.auction.log.chain import entry_to_json, seal
from scheduler.auction.search.grid import Grid
from scheduler.auction.search.task_search import Search
from scheduler.experiments.auction.reference import search_by_enumeration
from scheduler.public_log.entries import hash_entry, hide_bid
from scheduler.types import Cell, Decision, NodeSpec, Refusal, Task
from tests.properties.auction_cases import grids_with_tasks, lay_out
from tests.properties.auction_markets import Market, find_strangers, overuse

STEPS = 60
SEEDS = st.integers(0, 10**9)


def verify_some(grid: Grid, marks: list[bool]) -> list[str]:
    """Mark nodes as verified by these draws; those that are not."""
    for node, is_verified in zip(list(grid.nodes), marks, strict=False):
        k = grid.column[node.id]
        grid.nodes[k] = replace(node, is_verified=is_verified)
    grid._refresh_columns()
    return [node.id for node in grid.nodes if not node.is_verified]


@settings(max_examples=250, deadline=None)
@given(
    case=grids_with_tasks(most_nodes=4, most_slots=4),
    marks=st.lists(st.booleans(), min_size=4, max_size=4),
    additive=st.booleans(),
)
def test_the_search_finds_the_cheapest_of_all_schedules_on_verified_nodes(
    case: tuple[Grid, Task], marks: list[bool], additive: bool
) -> None:
    grid, task = case
    others = verify_some(grid, marks)
    only = replace(task, verified_only=True)
    search = lay_out(grid, only, additive=additive)
    plan = search.find_plan(task.deadline_slot)
    with grid.withheld(others):
        expected = search_by_enumeration(
            grid,
            task,
            begin=max(grid.first_slot, task.arrival_slot),
            deadline=min(task.deadline_slot, grid.first_slot + grid.slots - 1),
            additive=additive,
            residual=True,
        )
    if plan is None:
        assert expected == math.inf
    elif expected < math.inf:
        assert {cell.node for cell in plan.schedule.cells}.isdisjoint(others)
        # Three slots of a third each do the work of one (``search.rates``): a hair less is asked.
        assert plan.price <= expected * (1 + 1e-9) + 1e-9
    # One that may use all nodes has no fewer plans.
    whole = lay_out(grid, task, additive=additive).find_plan(task.deadline_slot)
    assert plan is None or (whole is not None and whole.price <= plan.price * (1 + 1e-9) + 1e-9)


@settings(max_examples=150, deadline=None)
@given(
    case=grids_with_tasks(most_nodes=4, most_slots=4),
    marks=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_a_refusal_for_want_of_verified_nodes_is_true(
    case: tuple[Grid, Task], marks: list[bool]
) -> None:
    grid, task = case
    verify_some(grid, marks)
    search = Search(grid=grid, task=replace(task, verified_only=True), from_slot=grid.first_slot)
    if search.find_plan(task.deadline_slot) is not None:
        return
    able = [
        node
        for node in grid.nodes
        if task.rates.get(node.gpu_type, 0.0) > 0
        and node.memory_capacity - grid.base_memory >= task.memory_demand
        and node.compute_capacity >= task.rates[node.gpu_type]
    ]
    refusal = search.find_refusal()
    verified = [node for node in able if node.is_verified]
    none_at_all = not any(node.is_verified for node in grid.nodes)
    assert (refusal is Refusal.VERIFIED) == (none_at_all or (bool(able) and not verified))


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, at=st.integers(0, STEPS))
def test_no_course_of_events_gives_a_task_a_cell_of_a_node_that_is_not_verified(
    seed: int, at: int
) -> None:
    market = Market(seed, policy="lagrangian")
    start = market.engine.snapshot()
    log: list[ChainEntry] = []
    for step in range(STEPS):
        log += market.run(1)
        assert find_strangers(market) == []
        assert overuse(market.engine) == []
        if step == at:
            market.engine = Engine.restore(json.loads(json.dumps(market.engine.snapshot())))
    found = verify(log, start)
    assert (found.ok, found.problem) == (True, None)
    hidden = [hide_bid(json.loads(json.dumps(entry_to_json(entry)))) for entry in log]
    assert verify_public(hidden, start).ok
    engine = Engine.restore(start)
    for entry in log:
        engine.retrace(entry.event, entry.outcome, entry_hash=entry.hash)
    assert json.dumps(engine.snapshot()) == json.dumps(market.engine.snapshot())


# -- one zone, by hand ----------------------------------------------------------------------------


def make_zone(*verified: bool) -> Engine:
    """Nodes ``n0``, ``n1`` ..., the cheaper the earlier."""
    engine = Engine(ZoneRules(horizon_slots=8))
    for k, is_verified in enumerate(verified):
        engine.apply(events.NodeJoined(make_node(k, is_verified=is_verified)))
    return engine


def make_node(k: int, *, is_verified: bool) -> NodeSpec:
    return NodeSpec(f"n{k}", "g", 10.0, 10.0, ask=10.0 * (k + 1), is_verified=is_verified)


def make_task(name: str = "t", *, only: bool = True, demand: float = 20.0) -> Task:
    return Task(
        id=name,
        arrival_slot=0,
        deadline_slot=7,
        compute_demand=demand,
        memory_demand=1.0,
        bid=1000.0,
        rates={"g": 10.0},
        verified_only=only,
    )


def decide(engine: Engine, task: Task) -> tuple[ChainEntry, Decision]:
    engine.apply(events.BidsReceived(((task.id, seal_of(task)),)))
    entry = engine.apply(events.BidArrived(task, 0, salt="s"))
    assert isinstance(entry.outcome, Decision)
    return entry, entry.outcome


def seal_of(task: Task) -> str:
    return seal(events.BidArrived(task, 0, salt="s"))


def nodes_of(engine: Engine, task_id: str) -> set[str]:
    return {held.cell.node for held in engine.reservations() if held.task_id == task_id}


def test_a_task_for_verified_nodes_pays_what_their_slots_cost_and_others_are_not_touched() -> None:
    engine = make_zone(False, True)
    _, strict = decide(engine, make_task("strict"))
    _, any_node = decide(engine, make_task("any", only=False))
    assert (nodes_of(engine, "strict"), nodes_of(engine, "any")) == ({"n1"}, {"n0"})
    assert (strict.payment, any_node.payment) == (40.0, 20.0)


def test_without_a_verified_node_the_refusal_says_so() -> None:
    engine = make_zone(False, False)
    _, decision = decide(engine, make_task())
    assert (decision.refusal, decision.schedule) == (Refusal.VERIFIED, None)
    _, decision = decide(engine, make_task("any", only=False))
    assert decision.admitted


def test_a_node_that_is_verified_no_more_loses_those_tasks_alone() -> None:
    engine = make_zone(True, True)
    decide(engine, make_task("strict"))
    decide(engine, make_task("any", only=False))
    assert nodes_of(engine, "strict") == nodes_of(engine, "any") == {"n0"}
    outcome = engine.apply(events.NodeChanged(make_node(0, is_verified=False))).outcome
    assert [one.task_id for one in outcome.dropped] == ["strict"]
    assert (nodes_of(engine, "strict"), nodes_of(engine, "any")) == (set(), {"n0"})
    task = make_task("strict")
    with pytest.raises(ValueError, match="verified nodes only"):
        engine.apply(events.TaskReplanned(replace(task, verified_only=False), 0))
    engine.apply(events.TaskReplanned(task, 0))
    assert nodes_of(engine, "strict") == {"n1"}


def test_a_joint_plan_cannot_move_a_task_to_a_node_that_is_not_verified() -> None:
    engine = make_zone(False, True)
    task = make_task()
    decide(engine, task)
    before = engine.snapshot()
    move = events.PlanMove(
        task_id="t",
        deadline_slot=7,
        compute_demand=20.0,
        memory_demand=1.0,
        rates={"g": 10.0},
        cells=(Cell(1, "n0"), Cell(2, "n0")),
    )
    for told in (False, True):
        with pytest.raises(ValueError, match="t "):
            engine.apply(events.PlansMoved((replace(move, verified_only=told),), 0))
    assert engine.snapshot() == before
    there = replace(move, verified_only=True, cells=(Cell(3, "n1"), Cell(4, "n1")))
    engine.apply(events.PlansMoved((there,), 0))
    assert {held.cell for held in engine.reservations()} == set(there.cells)


def forge(entry: ChainEntry, change: Any) -> dict[str, Any]:
    """An entry's JSON with a change, and the hash that fits it."""
    data: dict[str, Any] = json.loads(json.dumps(entry_to_json(entry)))
    change(data)
    names = ("position", "event", "outcome", "prev_hash")
    data["hash"] = hash_entry(**{name: data[name] for name in names})
    return data


def test_a_forged_log_that_gives_a_cell_of_a_stranger_does_not_verify() -> None:
    engine = make_zone(False, True)
    start = engine.snapshot()
    task = make_task()
    received = engine.apply(events.BidsReceived(((task.id, seal_of(task)),)))
    entry = engine.apply(events.BidArrived(task, 0, salt="s"))

    def move(data: Mapping[str, Any]) -> None:
        for cell in data["outcome"]["schedule"]["cells"]:
            cell[1] = "n0"

    def refuse(data: Mapping[str, Any]) -> None:
        data["outcome"] |= {"admitted": False, "refusal": "verified", "schedule": None}

    told = json.loads(json.dumps(entry_to_json(received)))
    for change in (move, refuse):
        found = verify_public([told, forge(entry, change)], start)
        assert not found.ok
        assert found.position == entry.position
    assert verify_public([told, forge(entry, lambda _: None)], start).ok
    # A restart, which decides nothing again, does not follow it either.
    trusting = Engine.restore(start)
    trusting.retrace(received.event, received.outcome, entry_hash=received.hash)
    assert isinstance(entry.outcome, Decision)
    assert entry.outcome.schedule is not None
    moved = tuple(replace(cell, node="n0") for cell in entry.outcome.schedule.cells)
    forged = replace(entry.outcome, schedule=replace(entry.outcome.schedule, cells=moved))
    with pytest.raises(ValueError, match="not verified"):
        trusting.retrace(entry.event, forged, entry_hash=entry.hash)


def test_what_is_not_asked_for_is_not_written() -> None:
    engine = make_zone(False)
    entry, _ = decide(engine, make_task(only=False))
    assert "verified" not in json.dumps(entry_to_json(entry))
    assert "verified" not in json.dumps(engine.snapshot())
