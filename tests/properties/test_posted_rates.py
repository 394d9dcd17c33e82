"""Providers gain nothing by lying: rates come from others, and a rate is taken or left."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.log import events
from scheduler.auction.prices import KnownBids, Settings, solve_prices
from scheduler.auction.prices.posted_rates import (
    RateTerms,
    RegisteredNode,
    find_reference_asks,
    post_rates,
)
from scheduler.experiments.attack.providers import (
    MOST_GAIN,
    ZONES,
    ProviderZone,
    Report,
    find_best_response,
    try_misreports,
)
from scheduler.types import Decision, NodeRate, NodeSpec, Task
from tests.properties.test_lagrangian_policy import SolvedMarket

BLOCK, DAY = 3, 8


def a_zone(seed: int) -> tuple[list[RegisteredNode], list[list[Task]]]:
    """Draw two to five providers of one to three nodes, and two past days."""
    rng = np.random.default_rng(seed)
    nodes = [
        RegisteredNode(
            NodeSpec(
                id=f"node-{provider}-{k}",
                gpu_type=str(rng.choice(["g", "h"])),
                compute_capacity=float(rng.choice([8.0, 10.0, 20.0])),
                memory_capacity=float(rng.choice([10.0, 20.0])),
                ask=float(rng.uniform(0.0, 30.0)),
            ),
            f"provider-{provider}",
        )
        for provider in range(rng.integers(2, 6))
        for k in range(rng.integers(1, 4))
    ]
    days = [[a_task(rng, f"{day}-{n}") for n in range(rng.integers(0, 40))] for day in range(2)]
    return nodes, days


def a_task(rng: np.random.Generator, name: str) -> Task:
    arrival = int(rng.integers(DAY))
    work = float(rng.uniform(2.0, 30.0))
    return Task(
        id=name,
        arrival_slot=arrival,
        deadline_slot=arrival + int(rng.integers(4)),
        compute_demand=work,
        memory_demand=float(rng.uniform(0.5, 6.0)),
        bid=work * float(rng.uniform(0.2, 9.0)),
        rates={"g": 5.0, "h": 3.0},
    )


def post(nodes: list[RegisteredNode], days: list[list[Task]]) -> dict[str, tuple[float, ...]]:
    won = {task.id for day in days for task in day}
    found = post_rates(nodes, days, RateTerms(DAY, 2.0), won=won)
    return {node: (rate.floor, *rate.by_block) for node, rate in found.items()}


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), factor=st.floats(0.0, 1e6), slot=st.integers(0, DAY))
def test_nothing_a_provider_says_of_its_ask_or_availability_moves_its_own_rate(
    seed: int, factor: float, slot: int
) -> None:
    nodes, days = a_zone(seed)
    own = nodes[seed % len(nodes)].provider
    lying = [
        replace(each, node=replace(each.node, ask=each.node.ask * factor, available_until=slot))
        if each.provider == own
        else each
        for each in nodes
    ]
    truth, lie = post(nodes, days), post(lying, days)
    for each in nodes:
        if each.provider == own:
            assert truth[each.node.id] == lie[each.node.id]


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_rates_are_never_below_their_floor_and_follow_from_what_is_given_alone(seed: int) -> None:
    nodes, days = a_zone(seed)
    found = post_rates(nodes, days, RateTerms(DAY, 2.0))
    again = post_rates(list(nodes), [list(day) for day in days], RateTerms(DAY, 2.0))
    assert found == again
    for rate in found.values():
        assert min(rate.by_block) >= rate.floor >= 0.0


@settings(deadline=None, max_examples=100)
@given(seed=st.integers(0, 10**6))
def test_one_peer_that_asks_a_hundred_times_as_much_moves_a_reference_by_one_rank(
    seed: int,
) -> None:
    nodes, _ = a_zone(seed)
    # Of one size and type each, so that a rank is a node.
    nodes = [replace(n, node=replace(n.node, compute_capacity=10.0, gpu_type="g")) for n in nodes]
    loud = seed % len(nodes)
    shouting = list(nodes)
    shouting[loud] = replace(
        nodes[loud], node=replace(nodes[loud].node, ask=100.0 * nodes[loud].node.ask + 1.0)
    )
    before, after = find_reference_asks(nodes), find_reference_asks(shouting)
    for (provider, kind), reference in before.items():
        if provider == nodes[loud].provider:
            assert after[provider, kind] == reference
            continue
        asks = sorted(n.ask for n in nodes if n.provider != provider)
        moved = after[provider, kind]
        assert reference is not None
        assert moved is not None
        assert not [ask for ask in asks if reference < ask < moved]


class PostedMarket(SolvedMarket):
    """A random market whose providers are paid posted rates."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.rules = replace(self.rules, posts_rates=True)
        self.engine = Engine(self.rules)
        self.posted = 0

    def next_event(self) -> events.Event:
        if self.nodes >= 2 and (self.posted == 0 or self.rng.random() < 0.1):
            self.posted += 1
            return self.post()
        return super().next_event()

    def post(self) -> events.RatesPosted:
        """Draw rates of two blocks for most nodes."""
        rates: dict[str, Any] = {}
        for node in self.engine.nodes:
            if self.rng.random() < 0.9:
                floor = self.rng.uniform(0.0, 0.6)
                blocks = tuple(floor + self.rng.uniform(0.0, 1.5) for _ in range(2))
                rates[node.id] = NodeRate(node.ask / node.compute_capacity, floor, blocks)
        return events.RatesPosted(first_slot=self.slot, block_slots=2, day_slots=4, rates=rates)


def check_decision(before: dict[str, Any], event: events.BidArrived, outcome: Decision) -> None:
    """Hold what was sold against the rates in force before."""
    if not outcome.admitted:
        return
    assert outcome.schedule is not None
    assert outcome.parts is not None
    engine = Engine.restore(before)
    prices, posted = engine.prices(), engine.posted_rates
    assert posted is not None
    paid = 0.0
    for cell in outcome.schedule.cells:
        k = prices.node_ids.index(cell.node)
        rate = float(prices.reserve_price[k, cell.slot - prices.first_slot])
        own = posted.rates[cell.node]
        assert own.ask <= rate
        assert own.floor <= rate <= max(own.by_block)
        paid += rate * event.task.rates[engine.nodes[k].gpu_type]
    assert outcome.parts.operational == pytest.approx(paid, rel=1e-12, abs=1e-9)
    # The buyer pays what providers get, and more only for room that others want.
    assert outcome.payment >= outcome.parts.vendor + outcome.parts.operational


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_a_cell_is_sold_only_where_the_ask_is_no_higher_than_the_rate_which_the_buyer_pays(
    seed: int,
) -> None:
    market = PostedMarket(seed)
    for _ in range(60):
        event = market.next_event()
        before = market.engine.snapshot()
        outcome = market.engine.transition(event)
        if isinstance(event, events.BidArrived) and isinstance(outcome, Decision):
            check_decision(before, event, outcome)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), at=st.integers(0, 60))
def test_a_log_with_posted_rates_replays_and_retraces_to_the_last_bit(seed: int, at: int) -> None:
    market = PostedMarket(seed)
    log = market.run(60)
    engine = Engine(market.rules)
    for entry in log:
        assert engine.apply(entry.event) == entry
    engine = Engine(market.rules)
    for entry in log[:at]:
        engine.apply(entry.event)
    engine = Engine.restore(json.loads(json.dumps(engine.snapshot())))
    for entry in log[at:]:
        engine.retrace(entry.event, entry.outcome, entry_hash=entry.hash)
    assert json.dumps(engine.snapshot()) == json.dumps(market.engine.snapshot())


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6), factor=st.floats(0.0, 1.0))
def test_any_ask_no_higher_than_the_floor_sells_the_same_cells_for_the_same_pay(
    seed: int, factor: float
) -> None:
    """The rate is taken or left: below it an ask decides nothing, not even a solve."""
    nodes, days = a_zone(seed)
    own = nodes[0]
    posted = {
        each.node.id: NodeRate(each.ask, 1.0 + each.ask, (2.0 + each.ask,) * 3) for each in nodes
    }
    outcomes: list[list[Any]] = []
    for share in (1.0, factor):
        ask = share * own.node.ask
        engine = Engine(
            ZoneRules(base_memory=2.0, horizon_slots=DAY, refusal_hints=False, posts_rates=True)
        )
        for each in nodes:
            node = replace(each.node, ask=ask) if each is own else each.node
            engine.apply(events.NodeJoined(node))
        stated = replace(posted[own.node.id], ask=ask / own.node.compute_capacity)
        rates = {**posted, own.node.id: stated}
        engine.apply(events.RatesPosted(0, BLOCK, DAY, rates))
        found: list[Any] = []
        for n, task in enumerate(sorted(days[0], key=lambda t: t.arrival_slot)):
            if n % 10 == 0:
                solved = solve_prices(
                    engine,
                    KnownBids(
                        slot=0,
                        last_slot=DAY - 1,
                        day_start=0,
                        today=(),
                        past_days=days,
                        won={task.id for day in days for task in day},
                    ),
                    seed=n,
                    settings=Settings(futures=2, iterations=12, most_tasks=60),
                )
                found.append((solved.sample_worth, solved.compute_price))
                engine.apply(solved)
            found.append(engine.transition(events.BidArrived(task, 0)))
        outcomes.append(found)
    assert outcomes[0] == outcomes[1]


def test_going_over_to_posted_rates_and_back_leaves_what_a_sample_costs() -> None:
    rules = ZoneRules(horizon_slots=4)
    engine = Engine(rules)
    for name, ask in (("a", 10.0), ("b", 20.0)):
        engine.apply(events.NodeJoined(NodeSpec(name, "g", 10.0, 10.0, ask=ask)))
    price = {"a": (4.0,) * 4, "b": (3.0,) * 4}
    memory = dict.fromkeys(price, (0.0,) * 4)
    engine.apply(events.PricesSolved(0, price, memory, own_asks=True))
    engine.apply(events.RulesChanged(replace(rules, posts_rates=True)))
    assert not engine.prices().on_sale.any()
    assert engine.prices().is_available.all()
    rates = {
        "a": NodeRate(1.0, 1.5, (1.5, 6.0)),
        "b": NodeRate(2.0, 1.5, (1.5, 6.0)),
    }
    engine.apply(events.RatesPosted(0, 2, 4, rates))
    prices = engine.prices()
    assert prices.on_sale.tolist() == [[True] * 4, [False, False, True, True]]
    assert prices.reserve_price[0].tolist() == [1.5, 1.5, 6.0, 6.0]
    assert prices.compute_price[0].tolist() == [0.0] * 4
    engine.apply(events.RulesChanged(rules))
    assert engine.prices().on_sale.all()
    assert engine.prices().reserve_price.tolist() == [[1.0] * 4, [2.0] * 4]


def test_rates_where_asks_are_paid_and_rates_below_their_floor_are_refused() -> None:
    engine = Engine(ZoneRules(horizon_slots=4))
    good = events.RatesPosted(0, 2, 4, {"a": NodeRate(1.0, 1.0, (1.0, 1.0))})
    with pytest.raises(ValueError, match="asks paid"):
        engine.apply(good)
    engine = Engine(ZoneRules(horizon_slots=4, posts_rates=True))
    for rate in (
        NodeRate(1.0, 2.0, (1.0, 2.0)),
        NodeRate(1.0, 1.0, (1.0,)),
        NodeRate(-1.0, 1.0, (1.0, 1.0)),
        NodeRate(1.0, 1.0, (1.0, float("nan"))),
    ):
        with pytest.raises(ValueError, match="of node a"):
            engine.apply(replace(good, rates={"a": rate}))
    assert engine.position == 0
    assert engine.posted_rates is None


def test_rules_without_posted_rates_are_written_as_before() -> None:
    assert "posts_rates" not in json.dumps(Engine(ZoneRules()).snapshot())


#: A day of seconds instead of minutes: fewer slots, and one future of few tasks.
SHORT = [
    replace(
        zone,
        scenario=replace(zone.scenario, slots=24),
        solve=Settings(futures=1, most_tasks=200),
        beats=1,
    )
    for zone in ZONES
]


@pytest.mark.parametrize("zone", SHORT[:1], ids=lambda zone: zone.name)
def test_misreports_of_ask_availability_and_capacity_gain_nothing(zone: ProviderZone) -> None:
    found = try_misreports(zone, seeds=range(2), each=2)
    assert found.measures["gain"].trials == 4
    profit = found.measures["truthful_profit"].mean
    assert profit > 0
    assert found.measures["gain"].mean <= MOST_GAIN * profit


def test_where_asks_are_paid_the_truth_earns_nothing_and_a_lie_does() -> None:
    """The measure finds gains where there are some."""
    found = find_best_response(SHORT[0], seeds=range(2), posts_rates=False, grid=[Report(ask=2.0)])
    assert abs(found.measures["truthful_profit"].mean) < 1e-9
    assert found.measures["gain"].mean > 0.01


@pytest.mark.nightly
@pytest.mark.parametrize("zone", SHORT, ids=lambda zone: zone.name)
def test_thousands_of_misreports_gain_nothing(zone: ProviderZone) -> None:
    """Ten thousand over the three zones."""
    found = try_misreports(zone, seeds=range(67), each=50)
    gain, profit = found.measures["gain"], found.measures["truthful_profit"]
    assert gain.trials == 3350
    assert gain.mean <= MOST_GAIN * profit.mean


@pytest.mark.nightly
@pytest.mark.parametrize("zone", ZONES, ids=lambda zone: zone.name)
def test_no_fixed_misreport_is_better_than_the_truth(zone: ProviderZone) -> None:
    found = find_best_response(zone, seeds=range(12), posts_rates=True)
    assert found.verdict != "missed", found.to_json()
