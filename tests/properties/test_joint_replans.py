"""Joint plans: no promise that stood is broken, no price moves, no cell is sold twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduler.auction import ChainEntry, Engine, GridChange, verify
from scheduler.auction.audit.verify import verify_public
from scheduler.auction.joint.least_laxity import JointPlan, plan_by_laxity
from scheduler.auction.log import events
from scheduler.auction.log.chain import entry_to_json
from scheduler.auction.log.outcomes import MovedPlans
from scheduler.experiments.auction.cheaper_plans import find_cheaper_plans
from scheduler.experiments.auction.exact_replans import plan_exactly
from scheduler.public_log.entries import hide_bid
from scheduler.types import Cell
from tests.properties.auction_markets import Market, overuse

SEEDS = st.integers(0, 10**9)


class Loss:
    """A market whose node is gone, with the jobs it hit and those that may move."""

    def __init__(self, seed: int, steps: int) -> None:
        self.market = market = Market(seed, policy="lagrangian")
        self.rng = Random(seed + 1)
        market.run(steps)
        market.engine.apply(self.solved())
        self.entries: list[ChainEntry] = []
        self.start = market.engine.snapshot()
        self.slot = market.slot + 1
        before = {task_id: market.promise(task_id) for task_id in self.held()}
        names = [node.id for node in market.engine.nodes]
        hit: set[str] = set()
        for name in self.rng.sample(names, min(len(names), 2)):
            entry = market.engine.apply(events.NodeLeft(name, market.slot))
            self.entries.append(entry)
            assert isinstance(entry.outcome, GridChange)
            hit |= {dropped.task_id for dropped in entry.outcome.dropped}
        held = self.held()
        ahead = [one for one in before.values() if one.compute_demand > 0]
        self.lost = [one for one in ahead if one.task_id in hit]
        self.movable = [
            one
            for one in ahead
            if one.task_id not in hit and held[one.task_id][-1].slot <= one.deadline_slot
        ]

    def solved(self) -> events.PricesSolved:
        engine = self.market.engine
        rows = {
            node.id: tuple(self.rng.uniform(0, 3) for _ in range(engine.horizon.slots))
            for node in engine.nodes
        }
        return events.PricesSolved(engine.horizon.first_slot, rows, rows)

    def held(self) -> dict[str, list[Cell]]:
        found: dict[str, list[Cell]] = {}
        for one in self.market.engine.reservations():
            found.setdefault(one.task_id, []).append(one.cell)
        return {task_id: sorted(cells) for task_id, cells in found.items()}

    def event(self, plan: JointPlan) -> events.PlansMoved:
        return events.PlansMoved(plan.moves, self.slot, plan.given_up)

    def check(self, plan: JointPlan) -> None:
        """Apply a plan; say in assertions what it may and what it may not change."""
        engine = self.market.engine
        before, prices = self.held(), engine.prices()
        entry = engine.apply(self.event(plan))
        self.entries.append(entry)
        after, now = self.held(), engine.prices()
        assert now.compute_price.tobytes() == prices.compute_price.tobytes()
        assert now.memory_price.tobytes() == prices.memory_price.tobytes()
        assert overuse(engine) == []
        types = {node.id: node.gpu_type for node in engine.nodes}
        moved = {move.task_id: move for move in plan.moves}
        assert isinstance(entry.outcome, MovedPlans)
        left = {one.task_id: one.cells for one in entry.outcome.released}
        assert left.keys() == moved.keys() | set(plan.given_up)
        for promise in (*self.lost, *self.movable):
            task_id = promise.task_id
            ahead = [cell for cell in after.get(task_id, []) if cell.slot >= self.slot]
            if task_id in plan.given_up:
                assert promise in self.lost
                assert ahead == []
                continue
            work = sum(promise.rates[types[cell.node]] for cell in ahead)
            assert work >= promise.compute_demand * (1 - 1e-9)
            assert ahead[-1].slot <= promise.deadline_slot
            assert {cell.node for cell in ahead}.isdisjoint(promise.avoided_nodes)
        for task_id in before.keys() - left.keys():
            assert after[task_id] == before[task_id]
        assert plan.kept == len(self.lost) - len(plan.given_up)

    def check_log(self) -> None:
        """Replay the entries since the loss: whole, with bids left out, and by following them."""
        found = verify(self.entries, self.start)
        assert (found.ok, found.problem) == (True, None)
        hidden = [hide_bid(json.loads(json.dumps(entry_to_json(e)))) for e in self.entries]
        assert verify_public(hidden, self.start).ok
        engine = Engine.restore(self.start)
        for entry in self.entries:
            engine.retrace(entry.event, entry.outcome, entry_hash=entry.hash)
        assert engine.snapshot() == self.market.engine.snapshot()


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS, steps=st.integers(10, 60))
def test_losses_shared_out_break_no_promise_that_stood(seed: int, steps: int) -> None:
    loss = Loss(seed, steps)
    assume(loss.lost)
    plan = plan_by_laxity(loss.market.engine, lost=loss.lost, movable=loss.movable, slot=loss.slot)
    loss.check(plan)
    loss.check_log()


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, steps=st.integers(10, 60))
def test_an_exact_plan_breaks_no_promise_and_keeps_at_least_as_many(seed: int, steps: int) -> None:
    loss = Loss(seed, steps)
    assume(loss.lost)
    engine = loss.market.engine
    swapped = plan_by_laxity(engine, lost=loss.lost, movable=loss.movable, slot=loss.slot)
    exact = plan_exactly(
        engine, lost=loss.lost, movable=loss.movable, slot=loss.slot, time_limit_s=10.0
    )
    assert swapped.kept <= exact.plan.kept == exact.bound
    loss.check(exact.plan)
    loss.check_log()


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, steps=st.integers(10, 60))
def test_jobs_go_to_no_node_that_they_are_to_avoid(seed: int, steps: int) -> None:
    loss = Loss(seed, steps)
    assume(loss.lost)
    names = sorted(node.id for node in loss.market.engine.nodes)
    loss.lost = [replace(one, avoided_nodes=frozenset(names[:1])) for one in loss.lost]
    for find in (plan_by_laxity, plan_exactly):
        found = find(loss.market.engine, lost=loss.lost, movable=(), slot=loss.slot)
        plan = found if isinstance(found, JointPlan) else found.plan
        lost = {one.task_id for one in loss.lost}
        assert all(cell.node not in names[:1] for m in plan.moves for cell in m.cells)
        assert {move.task_id for move in plan.moves} | set(plan.given_up) == lost


@pytest.mark.parametrize(("ends_later", "least"), [(False, 1), (True, 5)])
def test_waiting_plans_move_only_to_cells_worth_less_and_stay_in_time(
    ends_later: bool, least: int
) -> None:
    moved = sum(check_waiting_plans(seed, ends_later=ends_later) for seed in range(150))
    assert moved >= least


def check_waiting_plans(seed: int, *, ends_later: bool) -> int:
    """Move the waiting plans of one market; how many moved."""
    loss = Loss(seed, 10 + seed % 50)
    engine, before = loss.market.engine, loss.held()
    moves = find_cheaper_plans(
        engine.replica(), jobs=loss.movable, slot=loss.slot, ends_later=ends_later
    )
    worth = worth_of(loss, before)
    loss.lost = []
    loss.check(JointPlan(moves, kept=0))
    after, now = loss.held(), worth_of(loss, loss.held())
    for move in moves:
        last = move.deadline_slot if ends_later else before[move.task_id][-1].slot
        assert after[move.task_id][-1].slot <= last
        # Prices do not move, so that what each gains is not another's loss.
        assert now[move.task_id][0] < worth[move.task_id][0]
        assert now[move.task_id][1] <= worth[move.task_id][1] * (1 + 1e-9)
    loss.check_log()
    return len(moves)


def worth_of(loss: Loss, held: dict[str, list[Cell]]) -> dict[str, tuple[float, float]]:
    """What each movable job's cells are worth now, and what their nodes ask."""
    engine = loss.market.engine
    prices, nodes = engine.prices(), {node.id: node for node in engine.nodes}
    found: dict[str, tuple[float, float]] = {}
    for job in loss.movable:
        total = asked = 0.0
        for cell in held[job.task_id]:
            node, k = nodes[cell.node], prices.node_ids.index(cell.node)
            rate, at = job.rates[node.gpu_type], cell.slot - prices.first_slot
            asked += node.ask * rate / node.compute_capacity
            total += rate * float(prices.compute_price[k, at])
            total += job.memory_demand * float(prices.memory_price[k, at])
        found[job.task_id] = (total + asked, asked)
    return found


def forge(rng: Random, moves: Sequence[events.PlanMove]) -> tuple[events.PlanMove, ...]:
    """Spoil one move so that it breaks a promise."""
    at = rng.randrange(len(moves))
    move, cells = moves[at], list(moves[at].cells)
    last = cells[-1]
    spoilt = rng.choice(
        [
            replace(move, cells=()),
            replace(move, cells=tuple(reversed(cells))) if len(cells) > 1 else move,
            replace(move, cells=(*cells, last)),
            replace(move, deadline_slot=last.slot - 1),
            replace(move, compute_demand=move.compute_demand * 100 + 1e6),
            replace(move, memory_demand=1e6),
            replace(move, rates={}),
            replace(move, rates=dict.fromkeys(move.rates, 1000000.0)),
            replace(move, cells=(*cells[:-1], Cell(last.slot, "nobody"))),
            replace(move, cells=(*cells[:-1], replace(last, slot=10**6))),
            replace(move, cells=(replace(cells[0], slot=-(10**6)), *cells[1:])),
        ]
    )
    if spoilt == move:
        return (*moves, move)
    return (*moves[:at], spoilt, *moves[at + 1 :])


def test_a_plan_that_breaks_a_promise_is_refused_and_changes_nothing() -> None:
    forged = sum(check_forged_plan(seed) for seed in range(400))
    assert forged > 40


def check_forged_plan(seed: int) -> bool:
    """Spoil the joint plan of one market, if there is one; whether there was."""
    loss = Loss(seed, 10 + seed % 50)
    engine = loss.market.engine
    plan = plan_by_laxity(engine, lost=loss.lost, movable=loss.movable, slot=loss.slot)
    if not plan.moves:
        return False
    before = engine.snapshot()
    forged = replace(loss.event(plan), moves=forge(loss.rng, plan.moves))
    with pytest.raises(ValueError, match=r"task-|moved twice"):
        engine.apply(forged)
    assert engine.snapshot() == before
    return True
