"""Decisions, refusals and the rolling grid, to the last digit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduler.auction import DroppedCells, Engine, GridChange, ReleasedCells, Replan, ZoneRules
from scheduler.auction.log import events
from scheduler.types import Cell, LaborVendor, Refusal, Task, VendorCapacity
from tests.unit.scheduler.auction.builders import decide, node, price, task, zone


def test_an_empty_zone_sells_at_the_operational_cost_alone() -> None:
    engine = zone(node(ask=5.0))
    decision = decide(engine, task())
    assert decision.admitted
    assert decision.payment == 4.0  # two slots, 4 of 10 samples each, ask 5
    assert decision.surplus == 96.0
    assert decision.schedule is not None
    assert decision.schedule.cells == (Cell(0, "n"), Cell(1, "n"))
    assert decision.parts is not None
    assert (decision.parts.compute, decision.parts.memory) == (0.0, 0.0)


def test_a_bid_equal_to_the_price_is_refused() -> None:
    decision = decide(zone(node(ask=5.0)), task(bid=4.0))
    assert not decision.admitted
    assert decision.refusal is Refusal.PRICE
    assert decision.winning_price == 4.0
    assert decision.surplus == 0.0


def test_what_is_left_of_a_cell_is_not_sold_to_a_job_that_needs_more() -> None:
    engine = zone(node(compute_capacity=10.0))
    assert [decide(engine, task(name, deadline_slot=1)).admitted for name in "ab"] == [True, True]
    third = decide(engine, task("c", deadline_slot=1))
    assert (third.admitted, third.refusal) == (False, Refusal.CAPACITY)
    fits = decide(engine, task("d", deadline_slot=1, rates={"g": 2.0}, compute_demand=4.0))
    assert fits.admitted


def test_a_log_that_sells_a_cell_twice_cannot_be_followed() -> None:
    wide, narrow = zone(node(compute_capacity=20.0)), zone(node(compute_capacity=10.0))
    sales = [events.BidArrived(task(name, deadline_slot=1), 0) for name in "abc"]
    logged = [wide.transition(sale) for sale in sales]
    for sale, outcome in zip(sales[:2], logged[:2], strict=True):
        narrow.retrace(sale, outcome, entry_hash="a")
    held = list(narrow.reservations())
    with pytest.raises(ValueError, match="c is given cells that have no room for it"):
        narrow.retrace(sales[2], logged[2], entry_hash="b")
    assert (list(narrow.reservations()), narrow.head_hash) == (held, "a")


def test_over_coverage_is_paid() -> None:
    decision = decide(zone(node(ask=5.0)), task(compute_demand=4.1))
    assert decision.payment == 4.0


def test_payments_are_rounded_up_to_whole_units() -> None:
    engine = zone(node(ask=5.1), money_quantum=1.0)
    decision = decide(engine, task())
    assert decision.payment == 5.0
    assert decision.parts is not None
    assert decision.parts.rounding == pytest.approx(5.0 - 4.08)
    assert decision.parts.total == 5.0
    assert not decide(zone(node(ask=5.1), money_quantum=1.0), task(bid=5.0)).admitted
    assert decide(zone(node(ask=5.1), money_quantum=1.0), task(bid=5.5)).admitted


def test_a_rounding_error_does_not_cost_a_whole_unit() -> None:
    # 3 x (0.1 * 4 / 10 * 25) is 3 in exact arithmetic and not in floats.
    engine = zone(node(ask=0.1 * 25, compute_capacity=10.0), money_quantum=1.0)
    decision = decide(engine, task(compute_demand=12.0))
    assert decision.payment == 3.0


def test_the_cheapest_vendor_that_is_done_in_time_is_taken() -> None:
    offers = (LaborVendor("slow", 1.0, 5), LaborVendor("dear", 9.0, 0), LaborVendor("mid", 3.0, 4))
    decision = decide(zone(node()), task(vendors=offers))
    assert decision.schedule is not None
    assert decision.schedule.vendor == 2
    assert decision.schedule.cells == (Cell(4, "n"), Cell(5, "n"))  # slot a + h is usable
    assert decision.payment == 3.0


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"memory_demand": 11.0}, Refusal.MEMORY),
        ({"rates": {"other": 4.0}}, Refusal.MEMORY),
        ({"rates": {"g": 40.0}}, Refusal.MEMORY),
        ({"compute_demand": 25.0}, Refusal.WINDOW),
        ({"deadline_slot": 0}, Refusal.WINDOW),
        ({"arrival_slot": 6, "deadline_slot": 9}, Refusal.WINDOW),
        ({"vendors": (LaborVendor("slow", 0.0, 5),)}, Refusal.WINDOW),
        ({"bid": 0.0}, Refusal.PRICE),
    ],
)
def test_a_refusal_names_what_failed(changes: dict[str, Any], refusal: Refusal) -> None:
    engine = zone(node(ask=1.0))
    before = engine.snapshot()
    decision = decide(engine, task(**changes))
    assert not decision.admitted
    assert decision.refusal is refusal
    assert decision.payment == 0.0
    after = engine.snapshot()
    assert (after["arrays"], after["holds"]) == (before["arrays"], before["holds"])


def test_sold_cells_are_a_matter_of_capacity_and_a_later_deadline_may_win() -> None:
    engine = zone(node(ask=1.0, memory_capacity=4.0))
    assert decide(engine, task("one", memory_demand=3.0)).admitted
    refused = decide(engine, task("two", memory_demand=3.0, deadline_slot=1))
    assert refused.refusal is Refusal.CAPACITY
    assert refused.winning_price is None
    assert refused.winning_deadline_slot == 3
    assert refused.winning_deadline_price == 0.8


def test_a_zone_without_nodes_has_no_capacity() -> None:
    assert decide(zone(), task()).refusal is Refusal.CAPACITY


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"compute_demand": 1e300}, Refusal.WINDOW),
        ({"compute_demand": 0.0}, None),
        ({"compute_demand": 1e-300}, None),
        ({"rates": {}}, Refusal.MEMORY),
        ({"rates": {"g": 1e-300}}, Refusal.MEMORY),
        ({"rates": {"g": -1.0}}, Refusal.MEMORY),
        ({"memory_demand": 0.0}, None),
        ({"deadline_slot": -5}, Refusal.WINDOW),
        ({"arrival_slot": 10**9, "deadline_slot": 10**9}, Refusal.WINDOW),
        ({"bid": -1.0}, Refusal.PRICE),
    ],
)
def test_any_finite_task_is_answered(changes: dict[str, Any], refusal: Refusal | None) -> None:
    engine = zone(node())
    quote = engine.quote(task(**changes), slot=0)
    decision = decide(engine, task(**changes))
    assert (decision.refusal, decision.admitted) == (refusal, refusal is None)
    assert decision.payment == 0.0
    # A quote does not know the bid.
    assert quote.refusal is (None if refusal is Refusal.PRICE else refusal)
    assert quote.price == (None if quote.refusal else 0.0)


def test_slots_retire_and_open_at_the_end_at_no_price() -> None:
    engine = zone(node())
    price(engine, 1.0)
    decide(engine, task(compute_demand=24.0))
    assert (engine.prices().compute_price > 0).all()
    assert engine.apply(events.SlotAdvanced(2)).outcome == GridChange()
    prices = engine.prices()
    assert prices.first_slot == 2
    assert (prices.compute_price[0] > 0).tolist() == [True] * 4 + [False] * 2
    assert [r.cell.slot for r in engine.reservations()] == [2, 3, 4, 5]
    engine.apply(events.SlotAdvanced(1))
    assert engine.horizon.first_slot == 2
    engine.apply(events.SlotAdvanced(100))
    assert engine.reservations() == ()
    assert not engine.prices().compute_price.any()


def test_a_node_that_leaves_takes_its_cells_along_and_says_whose() -> None:
    engine = zone(node("a"), node("b", available_from=3))
    decide(engine, task(compute_demand=16.0, deadline_slot=3))
    left = engine.apply(events.NodeLeft("a", 2)).outcome
    assert left == GridChange(dropped=(DroppedCells("t", (Cell(2, "a"), Cell(3, "a"))),))
    assert [n.available_until for n in engine.nodes] == [1, None]
    plan = engine.apply(events.TaskReplanned(task(compute_demand=8.0, deadline_slot=4), 2)).outcome
    assert isinstance(plan, Replan)
    assert plan.schedule is not None
    assert plan.schedule.cells == (Cell(3, "b"), Cell(4, "b"))
    assert plan.complete
    assert not plan.late
    engine.apply(events.SlotAdvanced(2))
    assert [n.id for n in engine.nodes] == ["b"]
    assert engine.apply(events.NodeLeft("nobody", 0)).outcome == GridChange()


def test_a_node_that_comes_back_starts_afresh() -> None:
    engine = zone(node())
    price(engine, 1.0)
    decide(engine, task())
    back = engine.apply(events.NodeJoined(node())).outcome
    assert back == GridChange(dropped=(DroppedCells("t", (Cell(0, "n"), Cell(1, "n"))),))
    assert engine.reservations() == ()
    assert not engine.prices().compute_price.any()


def test_a_smaller_node_keeps_its_oldest_jobs() -> None:
    engine = zone(node())
    decide(engine, task("old", deadline_slot=1))
    decide(engine, task("young", deadline_slot=1))
    changed = engine.apply(events.NodeChanged(node(compute_capacity=5.0, ask=7.0))).outcome
    assert changed == GridChange(dropped=(DroppedCells("young", (Cell(0, "n"), Cell(1, "n"))),))
    assert {r.task_id for r in engine.reservations()} == {"old"}


def test_a_replan_that_cannot_make_the_deadline_is_late_and_one_that_cannot_end_is_incomplete() -> (
    None
):
    engine = zone(node())
    late = engine.apply(events.TaskReplanned(task(deadline_slot=0), 0)).outcome
    assert isinstance(late, Replan)
    assert (late.complete, late.late) == (True, True)
    assert late.schedule is not None
    assert late.schedule.finish_slot == 1
    never = engine.apply(events.TaskReplanned(task(compute_demand=1000.0), 0)).outcome
    assert isinstance(never, Replan)
    assert (never.complete, never.late) == (False, True)
    assert never.released == (Cell(0, "n"), Cell(1, "n"))
    assert never.schedule is not None
    assert len(never.schedule.cells) == 6


def test_only_cells_that_are_held_can_be_released() -> None:
    engine = zone(node())
    decide(engine, task())
    release = events.CellsReleased("t", (Cell(1, "n"), Cell(5, "n")))
    assert engine.apply(release).outcome == ReleasedCells((Cell(1, "n"),))
    assert engine.apply(release).outcome == ReleasedCells(())
    assert [r.cell for r in engine.reservations()] == [Cell(0, "n")]


def test_solved_prices_are_taken_as_given_for_the_slots_on_sale() -> None:
    engine = zone(node(), node("other"))
    engine.apply(
        events.PricesSolved(
            first_slot=-1,
            compute_price={"n": (9.0, 0.5, 0.25), "other": (), "gone": (1.0,)},
            memory_price={"n": (9.0, 0.125)},
            seed=7,
        )
    )
    prices = engine.prices()
    assert prices.compute_price.tolist() == [[0.5, 0.25, 0, 0, 0, 0], [0.0] * 6]
    assert prices.memory_price[0, 0] == 0.125


def test_a_snapshot_survives_json_and_a_foreign_one_is_refused() -> None:
    engine = zone(node(available_until=3), node("b"))
    decide(engine, task())
    text = json.dumps(engine.snapshot())
    assert json.dumps(Engine.restore(json.loads(text)).snapshot()) == text
    with pytest.raises(ValueError, match="snapshot format 0 is not 2"):
        Engine.restore({**json.loads(text), "format": 0})


def test_rules_are_checked() -> None:
    with pytest.raises(ValueError, match="unknown price policy 'free'"):
        Engine(ZoneRules(policy="free"))
    with pytest.raises(ValueError, match="'residual': choose one of lagrangian"):
        Engine(ZoneRules(policy="residual"))
    with pytest.raises(ValueError, match="horizon_slots"):
        ZoneRules(horizon_slots=0)


def replan(engine: Engine, wanted: Task, slot: int = 0, **wishes: Any) -> Replan:
    outcome = engine.apply(events.TaskReplanned(wanted, slot, **wishes)).outcome
    assert isinstance(outcome, Replan)
    return outcome


def cells_of(outcome: Replan) -> tuple[Cell, ...]:
    assert outcome.schedule is not None
    return outcome.schedule.cells


def test_a_replan_takes_the_preferred_node_though_another_is_cheaper() -> None:
    engine = zone(node("cheap", ask=1.0), node("dear", ask=50.0))
    assert cells_of(replan(engine, task())) == (Cell(0, "cheap"), Cell(1, "cheap"))
    booked = replan(engine, task(), preferred_node="dear")
    assert cells_of(booked) == (Cell(0, "dear"), Cell(1, "dear"))
    assert (booked.late, booked.complete) == (False, True)


def test_a_preferred_node_without_room_in_time_or_unknown_is_no_reason_to_be_late() -> None:
    engine = zone(node("cheap", ask=1.0), node("dear", ask=50.0, available_from=5))
    for wish in ("dear", "nobody"):
        plan = replan(engine, task(deadline_slot=3), preferred_node=wish)
        assert cells_of(plan) == (Cell(0, "cheap"), Cell(1, "cheap"))


def test_a_replan_leaves_out_the_node_that_failed_even_if_it_ends_late_elsewhere() -> None:
    engine = zone(node("failed"), node("other", available_from=4))
    late = replan(engine, task(deadline_slot=2), avoided_nodes=("failed", "gone"))
    assert (late.late, late.complete) == (True, True)
    assert cells_of(late) == (Cell(4, "other"), Cell(5, "other"))
    # What was left out for the search is on sale again.
    assert cells_of(replan(engine, task("next"))) == (Cell(0, "failed"), Cell(1, "failed"))


def test_a_replan_takes_the_node_that_failed_when_it_is_the_only_one() -> None:
    engine = zone(node("failed"), node("small", memory_capacity=1.0))
    again = replan(engine, task(), avoided_nodes=("failed",))
    assert cells_of(again) == (Cell(0, "failed"), Cell(1, "failed"))
    assert not again.late


@pytest.mark.parametrize(
    ("tolerance", "finish"), [(None, 5), (0.0, 5), (0.09, 4), (0.1, 3), (0.2, 2), (0.3, 1)]
)
def test_a_replan_ends_first_among_plans_within_the_tolerance(
    tolerance: float | None, finish: int
) -> None:
    # Two cells, of 1.30, 1.10 or 1.00 each: the sooner, the dearer.
    engine = zone(
        node("now", ask=3.25, available_until=1),
        node("soon", ask=2.75, available_from=2, available_until=3),
        node("last", ask=2.5, available_from=4),
    )
    plan = replan(engine, task(deadline_slot=5), tolerance=tolerance)
    assert plan.schedule is not None
    assert plan.schedule.finish_slot == finish


def test_a_free_plan_that_ends_sooner_is_taken_at_no_tolerance() -> None:
    engine = zone(node("now", ask=0.0))
    assert cells_of(replan(engine, task(), tolerance=0.0)) == (Cell(0, "now"), Cell(1, "now"))


def test_a_vendor_that_is_busy_begins_when_it_has_room_again() -> None:
    engine = zone(node())
    engine.apply(events.VendorChanged(VendorCapacity("v", 3)))
    offers = (LaborVendor("v", 3.0, 2, load=2),)
    first = decide(engine, task("first", vendors=offers))
    second = decide(engine, task("second", vendors=offers))
    third = decide(engine, task("third", vendors=offers))
    assert first.schedule is not None
    assert second.schedule is not None
    assert (first.schedule.ready_slot, second.schedule.ready_slot) == (2, 4)
    assert second.schedule.cells == (Cell(4, "n"), Cell(5, "n"))
    assert third.refusal is Refusal.WINDOW
    # What is delivered early leaves room for others.
    engine.apply(events.PreparationEnded("first", 0))
    fourth = decide(engine, task("fourth", vendors=offers))
    assert fourth.schedule is not None
    assert fourth.schedule.ready_slot == 2


def test_a_vendor_that_lists_nothing_gets_no_work() -> None:
    engine = zone(node())
    offers = (LaborVendor("unknown", 1.0, 1, load=1), LaborVendor("v", 3.0, 1, load=1))
    assert decide(engine, task("first", vendors=offers)).refusal is Refusal.WINDOW
    engine.apply(events.VendorChanged(VendorCapacity("v", 1)))
    chosen = decide(engine, task("second", vendors=offers))
    assert chosen.schedule is not None
    assert (chosen.schedule.vendor, chosen.payment) == (1, 3.0)
    engine.apply(events.VendorChanged(VendorCapacity("v", 0)))
    assert decide(engine, task("third", vendors=offers)).refusal is Refusal.WINDOW


def test_a_quote_long_after_the_last_slot_on_sale_is_a_refusal() -> None:
    # The lane was down for longer than the horizon, and somebody looks at the bid page.
    engine = zone(node())
    engine.apply(events.VendorChanged(VendorCapacity("v", 1)))
    offers = (LaborVendor("v", 3.0, 1, load=1),)
    late = task(vendors=offers, arrival_slot=500, deadline_slot=510)
    assert engine.quote(late, slot=500).refusal is Refusal.WINDOW


def test_a_job_without_delivery_gets_the_next_vendor() -> None:
    engine = zone(node())
    for name in ("a", "b"):
        engine.apply(events.VendorChanged(VendorCapacity(name, 1)))
    offers = (LaborVendor("a", 1.0, 1, load=1), LaborVendor("b", 5.0, 1, load=1))
    decide(engine, task(vendors=offers))
    event = events.TaskReplanned(task(vendors=offers[1:], arrival_slot=2), 2)
    replan = engine.apply(event).outcome
    assert isinstance(replan, Replan)
    assert replan.schedule is not None
    assert (replan.schedule.ready_slot, replan.schedule.start_slot) == (3, 3)
    # While the second works, a lost node moves no cell before it is done.
    again = engine.apply(events.TaskReplanned(task(arrival_slot=2), 2)).outcome
    assert isinstance(again, Replan)
    assert again.schedule is not None
    assert again.schedule.start_slot == 3
    with pytest.raises(ValueError, match="before its vendor is done"):
        engine.apply(
            events.PlansMoved(
                (events.PlanMove("t", 5, 8.0, 2.0, {"g": 4.0}, (Cell(2, "n"), Cell(3, "n"))),), 2
            )
        )
