"""Numbers from outside: what would spoil prices is refused, and leaves no trace."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from scheduler.auction import DroppedCells, GridChange, ZoneRules
from scheduler.auction.engine.payment import PaymentRule
from scheduler.auction.log import events
from scheduler.auction.log.limits import check_event
from scheduler.experiments.auction.max_form.engine import make_engine
from scheduler.types import Cell, LaborVendor, Refusal, VendorCapacity
from tests.unit.scheduler.auction.builders import decide, node, task, zone

NAN, INF = math.nan, math.inf


def move(**changes: Any) -> events.PlanMove:
    """A job's way from nowhere to one cell."""
    plain = events.PlanMove("t", 5, 4.0, 2.0, {"g": 4.0}, (Cell(0, "n"),))
    return replace(plain, **changes)


@pytest.mark.parametrize("problem", ["x" * 501, "red \x1b[31m", "two\nlines", "left \u202e"])
def test_what_an_erratum_says_is_one_short_line_without_control_characters(problem: str) -> None:
    check_event(events.ErratumNoted(2, "x" * 499 + "é", "x", {"rates": 1.0}))
    for said in ((problem, "x", {}), ("x", problem, {}), ("x", "x", {problem: 1.0})):
        with pytest.raises(ValueError, match="what is wrong with entry 2 is one line"):
            check_event(events.ErratumNoted(2, *said))
    for amount in (INF, NAN, -1.0):
        with pytest.raises(ValueError, match="how far entry 2 is off is"):
            check_event(events.ErratumNoted(2, "x", "x", {"rates": amount}))


@pytest.mark.parametrize("moment", ["soon", "2026-01-01T00:00:00", "2026-01-01"])
def test_when_a_market_went_on_from_a_backup_is_a_moment(moment: str) -> None:
    known = "2026-01-01T00:00:00+00:00"
    check_event(events.LogRestored(known, known))
    for pair in ((moment, known), (known, moment)):
        with pytest.raises(ValueError, match=r"soon|offset from UTC"):
            check_event(events.LogRestored(*pair))
    with pytest.raises(ValueError, match="a restore follows its backup"):
        check_event(events.LogRestored(known, "2026-01-01T00:59:59+01:00"))


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize(
    ("number", "named"),
    [
        ("bid", "bid of task t"),
        ("compute_demand", "demand of task t"),
        ("memory_demand", "demand of task t"),
    ],
)
def test_a_bid_with_a_number_that_is_none_is_refused_and_leaves_no_trace(
    number: str, named: str, bad: float
) -> None:
    engine = zone(node(ask=1.0))
    decide(engine, task("before"))
    before = engine.snapshot()
    changes: dict[str, Any] = {number: bad}
    for event in (
        events.BidArrived(task(**changes), 0),
        events.TaskReplanned(task(**changes), 0),
    ):
        with pytest.raises(ValueError, match=named):
            engine.apply(event)
    with pytest.raises(ValueError, match=named):
        engine.quote(task(**changes), slot=0)
    assert engine.snapshot() == before
    assert decide(engine, task("after", bid=1000.0)).admitted


@pytest.mark.parametrize(
    ("event", "named"),
    [
        (events.BidArrived(task(rates={"g": NAN}), 0), "rates of task t"),
        (events.BidArrived(task(bid=1e31), 0), "bid of task t"),
        (events.BidArrived(task(memory_demand=-1.0), 0), "demand of task t"),
        (events.BidArrived(task(vendors=(LaborVendor("v", -1.0, 0),)), 0), "price of vendor v"),
        (events.BidArrived(task(vendors=(LaborVendor("v", INF, 0),)), 0), "price of vendor v"),
        (
            events.BidArrived(task(vendors=(LaborVendor("v", 1.0, 1, load=-1),)), 0),
            "load of vendor v",
        ),
        (events.VendorChanged(VendorCapacity("v", -1)), "capacity of vendor v"),
        (events.VendorChanged(VendorCapacity("v", 2**31 + 1)), "capacity of vendor v"),
        (
            events.BidArrived(task(operational_costs={"n": (1.0, NAN)}), 0),
            "operational_costs on node n",
        ),
        (
            events.BidArrived(task(operational_costs={"n": (-1.0,)}), 0),
            "operational_costs on node n",
        ),
        (events.BidArrived(task(deadline_slot=2**60), 0), "window of task t"),
        (events.BidArrived(task(), 2**60), "slot"),
        (events.TaskReplanned(task(), 0, tolerance=NAN), "tolerance"),
        (events.TaskReplanned(task(), 0, tolerance=-0.1), "tolerance"),
        (events.PlansMoved((), 2**60), "slot"),
        (events.PlansMoved((move(compute_demand=NAN),), 0), "demand of task t"),
        (events.PlansMoved((move(memory_demand=-1.0),), 0), "demand of task t"),
        (events.PlansMoved((move(rates={"g": INF}),), 0), "rates of task t"),
        (events.PlansMoved((move(deadline_slot=2**60),), 0), "window of task t"),
        (events.SlotAdvanced(2**60), "slot"),
        (events.NodeLeft("n", -(2**60)), "slot"),
        (events.NodeJoined(node("new", ask=NAN)), "ask of node new"),
        (events.NodeJoined(node("new", ask=-1.0)), "ask of node new"),
        (events.NodeChanged(node(compute_capacity=INF)), "capacity of node n"),
        (events.NodeChanged(node(memory_capacity=-1.0)), "capacity of node n"),
        (events.NodeChanged(node(available_from=2**60)), "availability of node n"),
        (events.PricesSolved(0, {"n": (NAN,)}, {}), "compute_price of node n"),
        (events.PricesSolved(0, {}, {"n": (0.0, INF)}), "memory_price of node n"),
        (events.PricesSolved(2**60, {}, {}), "first_slot"),
        (events.PricesSolved(0, {}, {}, usual_rates={"g": (NAN,)}), "usual_rates of g"),
        (events.PricesSolved(0, {}, {}, inputs={"each": NAN}), "inputs cannot be written"),
        (events.PricesSolved(0, {}, {}, inputs={"days": {1}}), "inputs cannot be written"),
        (
            events.RulesChanged(ZoneRules(settings={"growth": NAN})),
            "settings cannot be written",
        ),
    ],
)
def test_an_event_that_would_spoil_prices_is_refused_by_name(
    event: events.Event, named: str
) -> None:
    engine = zone(node(ask=1.0))
    decide(engine, task("before"))
    before = engine.snapshot()
    with pytest.raises(ValueError, match=named):
        engine.apply(event)
    assert engine.snapshot() == before


@pytest.mark.parametrize("name", ["base_memory", "money_quantum"])
@pytest.mark.parametrize("bad", [NAN, INF, -1e-9])
def test_rules_that_would_spoil_prices_are_refused(name: str, bad: float) -> None:
    changes: dict[str, Any] = {name: bad}
    with pytest.raises(ValueError, match=f"{name} is {bad}"):
        ZoneRules(**changes)


@pytest.mark.parametrize("name", ["alpha", "beta", "money_scale", "steepness"])
@pytest.mark.parametrize("bad", [NAN, INF, -1e-9])
def test_parameters_of_the_max_form_that_would_pay_winners_are_refused(
    name: str, bad: float
) -> None:
    with pytest.raises(ValueError, match=f"{name} is {bad}"):
        make_engine(ZoneRules(policy="residual", settings={name: bad}))


@pytest.mark.parametrize("slots", [0, -1, 1_000_001])
def test_a_horizon_that_no_table_holds_is_refused(slots: int) -> None:
    with pytest.raises(ValueError, match="horizon_slots must be between 1 and 1000000"):
        ZoneRules(horizon_slots=slots)


def test_events_on_nodes_and_jobs_nobody_knows_change_nothing() -> None:
    engine = zone(node(ask=1.0))
    decide(engine, task())
    before = engine.snapshot()
    for event in (
        events.NodeLeft("nobody", 0),
        events.CellsReleased("nobody", (Cell(0, "n"),)),
        events.CellsReleased("t", (Cell(0, "nobody"), Cell(99, "n"))),
        events.PricesSolved(0, {"nobody": (1.0,)}, {"nobody": (1.0,)}),
        events.SlotAdvanced(-5),
    ):
        engine.apply(event)
    after = engine.snapshot()
    same = ("arrays", "holds", "nodes", "memory", "first_slot")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}


def test_a_node_that_the_base_model_fills_is_never_sold() -> None:
    engine = zone(node(memory_capacity=2.0), base_memory=2.0)
    decision = decide(engine, task(memory_demand=0.0))
    assert decision.refusal is Refusal.MEMORY
    engine.apply(events.NodeJoined(node("room", memory_capacity=3.0)))
    admitted = decide(engine, task("u", memory_demand=0.0))
    assert admitted.schedule is not None
    assert {cell.node for cell in admitted.schedule.cells} == {"room"}


def test_a_node_changed_to_nothing_gives_up_its_jobs() -> None:
    engine = zone(node(ask=1.0))
    decide(engine, task())
    changed = engine.apply(
        events.NodeChanged(node(ask=1.0, compute_capacity=0.0, memory_capacity=0.0))
    ).outcome
    assert json.loads(json.dumps(engine.snapshot())) == engine.snapshot()
    assert changed == GridChange(dropped=(DroppedCells("t", (Cell(0, "n"), Cell(1, "n"))),))
    assert engine.reservations() == ()
    engine.apply(events.NodeChanged(node(ask=1.0)))
    assert decide(engine, task("again")).payment == 0.8


def test_rates_beyond_what_floats_divide_run_nothing() -> None:
    decision = decide(zone(node()), task(rates={"g": 5e-324}))
    assert decision.refusal is Refusal.MEMORY


@pytest.mark.parametrize("price", [3.0, 7e6 + 1e-9, 123456789.0 + 3e-8, 4e15])
def test_rounding_up_forgives_a_sums_own_error_whatever_the_amount(price: float) -> None:
    rule = PaymentRule(quantum=1.0)
    assert rule.price(price) == round(price)


@pytest.mark.parametrize("price", [0.25, 3.001, 1e6 + 1e-3])
def test_rounding_up_adds_what_is_missing(price: float) -> None:
    rule = PaymentRule(quantum=1.0)
    assert rule.price(price) == math.ceil(price)
    # What is looked for below a bid is what then rounds to less than it.
    assert price < rule.most_below(math.ceil(price) + 1.0)
    assert not price < rule.most_below(float(math.ceil(price)))


def test_a_later_deadline_is_named_only_if_the_bid_is_above_its_price() -> None:
    """A bid that equals the price of every later deadline wins at none."""
    engine = zone(node(ask=0.3))
    price = engine.quote(task(), slot=0).price
    assert price is not None
    refused = decide(engine, task(bid=price))
    assert refused.refusal is Refusal.PRICE
    assert refused.winning_deadline_slot is None


@pytest.mark.parametrize(
    ("vendors", "deadline"),
    [((), 1), ((LaborVendor("dear", 0.25, 0), LaborVendor("free", 0.0, 1)), 2)],
)
def test_the_least_bid_above_nothing_learns_that_later_cells_cost_nothing(
    vendors: tuple[LaborVendor, ...], deadline: int
) -> None:
    engine = zone(node())
    refused = decide(engine, task(bid=5e-324, deadline_slot=0, vendors=vendors))
    assert refused.refusal is Refusal.WINDOW
    assert (refused.winning_deadline_slot, refused.winning_deadline_price) == (deadline, 0.0)
