"""The guarantees of the auction under solved prices, solves included."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.auction import (
    ChainEntry,
    Engine,
    ZoneRules,
    entry_from_json,
    entry_to_json,
    verify,
)
from scheduler.auction.log import events
from scheduler.auction.prices import KnownBids, Settings, solve_prices
from scheduler.types import Decision, Task
from tests.properties.auction_markets import Market, faults_of, overuse
from tests.properties.misreports import search_for_profit

RERUNS = 1_000
RERUNS_NIGHTLY = 10_000
FEW = Settings(iterations=12, most_tasks=60)


class SolvedMarket(Market):
    """A random market whose prices are solved every few events."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, policy="lagrangian")
        self.decided: list[Task] = []
        self.solved = 0
        self.since = 0

    def next_event(self) -> events.Event:
        self.since += 1
        if self.decided and self.since > 4:
            self.since = 0
            self.solved += 1
            return self.solve(self.engine)
        event = super().next_event()
        if isinstance(event, events.BidArrived):
            self.decided.append(event.task)
        return event

    def solve(self, engine: Engine) -> events.PricesSolved:
        first, last = engine.horizon.first_slot, engine.horizon.last_slot
        # A past day on which every bid seen came again in every slot: a crowd.
        past = [
            replace(
                task,
                arrival_slot=slot,
                deadline_slot=slot + task.deadline_slot - task.arrival_slot,
            )
            for task in self.decided[-10:]
            for slot in range(last - first + 1)
        ]
        return solve_prices(
            engine,
            KnownBids(
                slot=first,
                last_slot=last,
                day_start=first,
                today=[],
                past_days=[past],
                won={task.id for task in past},
            ),
            seed=self.solved,
            settings=FEW,
        )


def test_no_misreport_pays_and_the_payment_does_not_know_the_bid() -> None:
    found = search_for_profit(SolvedMarket, reruns=RERUNS)
    assert found.reruns >= RERUNS
    assert min(found.won, found.lost, found.priced) >= 10
    assert found.profitable == 0


@pytest.mark.nightly
def test_no_misreport_pays_in_many_more_runs() -> None:
    found = search_for_profit(SolvedMarket, reruns=RERUNS_NIGHTLY)
    assert found.reruns >= RERUNS_NIGHTLY
    assert found.profitable == 0


def test_the_same_search_finds_misreports_that_pay_under_the_printed_payment() -> None:
    found = search_for_profit(SolvedMarket, reruns=RERUNS, by_eq14=True)
    assert found.profitable > 10


def played(seed: int, steps: int) -> tuple[SolvedMarket, list[ChainEntry]]:
    market = SolvedMarket(seed)
    return market, market.run(steps)


@pytest.mark.parametrize("seed", range(12))
def test_no_cell_is_oversold_and_every_admission_keeps_its_terms(seed: int) -> None:
    market = SolvedMarket(seed)
    admitted = 0
    for _ in range(80):
        event = market.next_event()
        outcome = market.engine.transition(event)
        assert overuse(market.engine) == []
        if isinstance(event, events.BidArrived) and isinstance(outcome, Decision):
            admitted += outcome.admitted
            assert faults_of(outcome, event.task, event.slot, market.engine) == []
    assert admitted > 0
    assert market.solved > 3


@pytest.mark.parametrize("seed", range(6))
def test_a_replay_gives_every_price_and_hash_again_bit_for_bit(seed: int) -> None:
    market, log = played(seed, 80)
    read = [entry_from_json(entry_to_json(entry)) for entry in log]
    again = Engine(market.rules)
    for at, entry in enumerate(read):
        if at == 40:
            again = Engine.restore(again.snapshot())
        assert again.apply(entry.event) == entry
    assert again.head_hash == market.engine.head_hash
    ours, theirs = market.engine.prices(), again.prices()
    assert ours.compute_price.tobytes() == theirs.compute_price.tobytes()
    assert ours.memory_price.tobytes() == theirs.memory_price.tobytes()


@pytest.mark.parametrize("seed", range(4))
def test_solving_again_from_the_log_gives_the_same_event_and_changes_nothing(seed: int) -> None:
    market, log = played(seed, 60)
    before = market.engine.snapshot()
    event = market.solve(market.engine)
    assert market.engine.snapshot() == before
    again = Engine(market.rules)
    for entry in log:
        again.apply(entry.event)
    assert market.solve(again) == event


def test_the_price_never_rises_with_the_deadline_nor_falls_with_work_or_memory() -> None:
    compared = 0
    for seed in range(12):
        market, _ = played(seed, 60)
        last = market.engine.horizon.last_slot
        for _ in range(30):
            task = market.bid().task
            task = replace(task, deadline_slot=market.rng.randint(market.slot, last))
            price = market.engine.quote(task, slot=market.slot).price
            if price is None:
                continue
            later = replace(task, deadline_slot=task.deadline_slot + market.rng.randint(0, 4))
            found = market.engine.quote(later, slot=market.slot).price
            assert found is not None
            assert found <= price * (1 + 1e-9)
            more = market.rng.uniform(1.0, 1.5)
            for greater in (
                replace(task, compute_demand=task.compute_demand * more),
                replace(task, memory_demand=task.memory_demand * more),
            ):
                dearer = market.engine.quote(greater, slot=market.slot).price
                assert dearer is None or dearer >= price * (1 - 1e-9)
                compared += dearer is not None
    assert compared > 80


def test_an_altered_solved_price_breaks_the_chain() -> None:
    market, log = played(3, 60)
    at = next(i for i, e in enumerate(log) if isinstance(e.event, events.PricesSolved))
    begun = Engine(market.rules)
    for entry in log[:at]:
        begun.apply(entry.event)
    event = log[at].event
    assert isinstance(event, events.PricesSolved)
    node, row = next(iter(event.compute_price.items()))
    forged = replace(event, compute_price={**event.compute_price, node: (row[0] + 0.01, *row[1:])})
    found = verify([replace(log[at], event=forged), *log[at + 1 :]], begun.snapshot())
    assert not found.ok
    assert (found.position, found.problem) == (
        log[at].position,
        "the hash is not that of the entry",
    )


@pytest.mark.parametrize("growth", [0.0, 0.1, 2.0])
def test_a_cell_grows_with_its_use_and_comes_back_when_released(growth: float) -> None:
    market = SolvedMarket(5)
    rules = ZoneRules(policy="lagrangian", horizon_slots=4, settings={"growth": growth})
    engine = Engine(rules)
    engine.apply(market._join())
    node = replace(engine.nodes[0], available_from=None, available_until=None, ask=0.0)
    engine.apply(events.NodeChanged(node))
    engine.apply(events.PricesSolved(0, {node.id: (1.0,) * 4}, {node.id: (2.0,) * 4}))
    task = Task(
        id="t",
        arrival_slot=0,
        deadline_slot=3,
        compute_demand=2.0,
        memory_demand=1.0,
        bid=1e6,
        rates={node.gpu_type: 2.0},
    )
    decision = engine.transition(events.BidArrived(task, 0))
    assert isinstance(decision, Decision)
    assert decision.payment == pytest.approx(2.0 * 1.0 + 1.0 * 2.0)
    prices = engine.prices()
    assert prices.compute_price[0, 0] == pytest.approx(1 + growth * 2.0 / node.compute_capacity)
    assert prices.memory_price[0, 0] == pytest.approx(2 + 2 * growth / node.memory_capacity)
    assert decision.schedule is not None
    engine.apply(events.CellsReleased("t", decision.schedule.cells))
    assert engine.prices().compute_price[0, 0] == pytest.approx(1.0)
    assert engine.prices().memory_price[0, 0] == pytest.approx(2.0)


def test_a_negative_growth_is_refused() -> None:
    with pytest.raises(ValueError, match="growth must not be negative"):
        Engine(ZoneRules(policy="lagrangian", settings={"growth": -0.1}))
