"""A job that its owner gives back: what goes back for it, and that a log cannot say otherwise."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from scheduler.auction import ChainEntry, Engine, ZoneRules
from scheduler.auction.audit.give_backs import GiveBackAudit
from scheduler.auction.audit.verify import verify, verify_public
from scheduler.auction.engine.give_backs import compute_refund
from scheduler.auction.log import events
from scheduler.auction.log.chain import chain_entry
from scheduler.auction.log.codec import event_to_json, outcome_to_json
from scheduler.auction.log.outcomes import GridChange, ReleasedCells, SoldAgain
from scheduler.types import Cell, Decision, NodeRate
from tests.unit.scheduler.auction.builders import enter, node, price, task

CELLS = (Cell(0, "n"), Cell(1, "n"))
REST = task(bid=0.0)
#: The task of two cells, at an ask of 100 for each of 10 samples.
PAID = 80


def begin(*later: events.Event) -> list[ChainEntry]:
    """Give the log of a zone that sells a job, after which something happens."""
    engine = Engine(ZoneRules(horizon_slots=6, money_quantum=1.0))
    log = [engine.apply(events.NodeJoined(node(ask=100.0)))]
    log += enter(engine, events.BidArrived(task(), 0, salt="s"))
    sold = log[-1].outcome
    assert isinstance(sold, Decision)
    assert (sold.payment, sold.schedule and sold.schedule.cells) == (PAID, CELLS)
    return log + [engine.apply(event) for event in later]


def give_back(**changes: Any) -> events.CellsReleased:
    return replace(events.CellsReleased("t", CELLS, rest=REST, paid=PAID), **changes)


@pytest.mark.parametrize(
    ("paid", "cost", "refund"),
    [(100, 100.0, 98), (100, 50.0, 49), (50, 100.0, 49), (100, None, 98), (100, 99.999, 97)],
)
def test_98_percent_of_the_smaller_of_what_was_paid_and_what_it_costs_goes_back(paid, cost, refund):
    assert compute_refund(paid=paid, price=cost) == refund


@pytest.mark.parametrize(
    ("change", "cost", "refund"),
    [
        (events.NodeChanged(node(ask=50.0)), 40, 39),
        (events.NodeChanged(node(ask=300.0)), 240, 78),
        (events.NodeLeft("n", from_slot=2), 80, 78),
        (events.NodeLeft("n", from_slot=0), None, 78),
    ],
)
def test_a_job_is_worth_what_the_rest_of_it_costs_once_its_cells_are_free(change, cost, refund):
    released = begin(change, give_back())[-1].outcome
    assert isinstance(released, ReleasedCells)
    assert (released.price, released.refund) == (cost, refund)


def test_cells_that_the_market_takes_back_say_no_refund():
    entry = begin(events.CellsReleased("t", CELLS))[-1]
    assert entry.outcome == ReleasedCells(CELLS)
    assert outcome_to_json(entry.outcome).keys() == {"type", "cells"}
    assert "rest" not in event_to_json(entry.event)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, None),
        ({"rest": replace(REST, compute_demand=4.0), "paid": 40}, None),
        ({"rest": replace(REST, compute_demand=9.0)}, "no part of the job"),
        ({"rest": replace(REST, deadline_slot=4)}, "no part of the job"),
        ({"rest": replace(REST, memory_demand=1.0)}, "no part of the job"),
        ({"rest": replace(REST, verified_only=True)}, "no part of the job"),
        # The rest is priced by the rates of today.
        ({"rest": replace(REST, rates={"g": 2.0})}, None),
        ({"cells": CELLS[1:], "rest": replace(REST, compute_demand=4.1), "paid": 41}, "not what"),
        ({"paid": PAID + 1}, "81 was not paid"),
        ({"rest": replace(REST, compute_demand=4.0), "paid": 41}, "41 was not paid"),
        ({"promised": 78}, None),
        ({"promised": 79}, "79 was promised"),
        ({"begun": 4.0, "begun_asks": 40}, None),
        ({"begun": 4.0, "begun_asks": 42}, "80 was not paid"),
        ({"begun": 4.0, "begun_asks": 39}, "80 was not paid"),
    ],
)
def test_a_log_gives_back_no_more_than_it_sold(changes, says):
    log = begin(give_back(**changes))
    rules = ZoneRules(horizon_slots=6, money_quantum=1.0)
    public = [
        {
            "position": entry.position,
            "event": event_to_json(entry.event),
            "outcome": outcome_to_json(entry.outcome),
            "prev_hash": entry.prev_hash,
            "hash": entry.hash,
        }
        for entry in log
    ]
    for found in (verify(log, rules=rules), verify_public(public, rules=rules)):
        assert found.ok == (says is None)
        assert says is None or says in (found.problem or "")


@pytest.mark.parametrize(
    ("first_slot", "parts", "is_ok"),
    [(1, 1, True), (0, 1, False), (2, 1, False), (1, 2, False)],
)
def test_a_log_gives_each_job_back_once_and_from_the_next_slot_on(first_slot, parts, is_ok):
    rest = replace(REST, compute_demand=4.1, arrival_slot=first_slot)
    log = begin(
        events.SlotAdvanced(0),
        *(
            events.CellsReleased("t", (CELLS[at],), rest=rest, paid=41, begun=0.1, begun_asks=1)
            for at in (1, 0)[:parts]
        ),
    )
    assert verify(log, rules=ZoneRules(horizon_slots=6, money_quantum=1.0)).ok == is_ok


@pytest.mark.parametrize("rates", [{"g": 2.0, "h": 4.0}, {"h": 4.0}])
def test_a_node_that_became_of_another_type_has_the_room_of_that(rates):
    engine = Engine(ZoneRules(horizon_slots=6, money_quantum=1.0))
    log = [engine.apply(events.NodeJoined(node(ask=100.0)))]
    log.append(engine.apply(events.NodeChanged(node(ask=100.0, gpu_type="h"))))
    log += enter(engine, events.BidArrived(task(rates=rates), 0, salt="s"))
    log.append(engine.apply(give_back(rest=replace(REST, rates=rates))))
    assert verify(log, rules=ZoneRules(horizon_slots=6, money_quantum=1.0)).ok


@pytest.mark.parametrize(
    "lost", [events.CellsReleased("t", CELLS[1:]), events.NodeLeft("n", from_slot=1)]
)
def test_a_job_is_for_the_cells_that_it_still_has(lost):
    """What the market took of its cells is done in those that are left."""
    log = begin(lost, give_back(cells=CELLS[:1], rest=replace(REST, compute_demand=4.1), paid=41))
    assert not verify(log, rules=ZoneRules(horizon_slots=6, money_quantum=1.0)).ok


@pytest.mark.parametrize(
    ("changes", "cost", "refund"),
    [
        # Both cells fit before the deadline: the work costs what two slots cost now.
        ({"deadline_slot": 2}, 20, 19),
        # One slot is left: its price, and the operational cost of the part that had begun.
        ({}, 10 + 40, 49),
    ],
)
def test_where_the_rest_does_not_fit_any_more_its_cells_and_what_was_begun_count(
    changes, cost, refund
):
    engine = Engine(ZoneRules(horizon_slots=6, money_quantum=1.0))
    engine.apply(events.NodeJoined(node(ask=100.0)))
    engine.transition(events.BidArrived(task(deadline_slot=1), 0))
    engine.apply(events.NodeChanged(node(ask=25.0)))
    rest = replace(task(bid=0.0, deadline_slot=1, arrival_slot=1), **changes)
    back = engine.transition(
        events.CellsReleased("t", CELLS[1:], rest=rest, paid=PAID, begun=4.0, begun_asks=40)
    )
    assert isinstance(back, ReleasedCells)
    assert (back.price, back.refund) == (cost, refund)


def test_cells_that_nobody_else_can_buy_any_more_are_worth_what_they_cost():
    engine = Engine(ZoneRules(horizon_slots=6, money_quantum=1.0))
    engine.apply(events.NodeJoined(node(ask=100.0)))
    engine.transition(events.BidArrived(task(), 0))
    engine.apply(events.NodeChanged(node(ask=50.0, available_until=0, keeps_sold=True)))
    back = engine.transition(give_back())
    assert isinstance(back, ReleasedCells)
    assert (back.price, back.refund) == (40, 39)


@pytest.mark.parametrize("forged", [{"refund": 77}, {"refund": 79}, {"price": 79.0}])
def test_a_log_that_pays_another_refund_does_not_verify(forged):
    *log, last = begin(give_back())
    outcome = replace(last.outcome, **forged)
    log.append(
        chain_entry(
            position=last.position, event=last.event, outcome=outcome, prev_hash=last.prev_hash
        )
    )
    found = verify(log, rules=ZoneRules(horizon_slots=6, money_quantum=1.0))
    assert (found.ok, found.position) == (False, last.position)


def test_prices_of_the_place_of_the_entry_count():
    engine = Engine(ZoneRules(horizon_slots=6, money_quantum=1.0))
    engine.apply(events.NodeJoined(node(ask=100.0)))
    price(engine, 10.0)
    sold = engine.transition(events.BidArrived(task(bid=1_000.0), 0))
    assert isinstance(sold, Decision)
    assert sold.payment == 160
    price(engine, 5.0)
    back = engine.transition(give_back(paid=160, rent=80))
    assert isinstance(back, ReleasedCells)
    # Of what is worth 117, the asks go back at once.
    assert (back.price, back.refund, back.waits) == (120, 79, 38)


#: A zone that sold the task at a rent of 40 for each of its cells.
RENTED = replace(give_back(), paid=160, rent=80)


def rent(*later: events.Event) -> Engine:
    engine = Engine(ZoneRules(horizon_slots=8, money_quantum=1.0))
    engine.apply(events.NodeJoined(node(ask=100.0)))
    price(engine, 10.0)
    for event in (events.BidArrived(task(bid=1_000.0), 0), *later):
        engine.transition(event)
    return engine


def buy(name: str, **changes: Any) -> events.BidArrived:
    """Give a purchase of all that is free of the two cells."""
    whole = {"bid": 1_000.0, "rates": {"g": 10.0}, "compute_demand": 20.0, "deadline_slot": 1}
    return events.BidArrived(task(name, **(whole | changes)), 0)


def ask_less(compute_price: float) -> events.PricesSolved:
    prices = {"n": (compute_price,) * 6}
    return events.PricesSolved(0, compute_price=prices, memory_price={"n": (0.0,) * 6})


#: A purchase that is moved to later cells.
MOVED = (
    buy("b"),
    events.PlansMoved(
        (events.PlanMove("b", 5, 20.0, 2.0, {"g": 10.0}, (Cell(2, "n"), Cell(3, "n"))),), 0
    ),
)


def begin_slots(engine: Engine, *slots: int) -> list[tuple[str, int, int, int]]:
    found = []
    for slot in slots:
        changed = engine.transition(events.SlotAdvanced(slot))
        assert isinstance(changed, GridChange)
        found += [(one.task_id, one.cell.slot, one.waited, one.rent) for one in changed.sold_again]
    return found


@pytest.mark.parametrize(
    ("later", "found"),
    [
        ((), [0, 0]),
        ((buy("b"),), [39, 39]),
        # No more than the rent that the new buyer pays: 20 a cell.
        ((ask_less(2.0), buy("b")), [20, 20]),
        # Of 4 that were given back, nobody has 2.
        (
            (buy("b", rates={"g": 8.0}, compute_demand=16.0),),
            [19, 19],
        ),
        # Who did not need what was given back has it not.
        ((buy("b", rates={"g": 6.0}, compute_demand=12.0),), [0, 0]),
        # A new plan of another job pays no rent.
        ((events.TaskReplanned(buy("r").task, 0),), [0, 0]),
        ((buy("b"), events.CellsReleased("b", CELLS)), [0, 0]),
        # Nobody could buy what the market has not.
        ((events.NodeLeft("n", from_slot=1),), [0, 39]),
        ((buy("b"), events.NodeLeft("n", from_slot=0)), [39, 39]),
        # Who was moved to other cells pays for these no longer.
        ((*MOVED, ask_less(2.0), buy("c")), [20, 20]),
        (MOVED, [0, 0]),
    ],
)
def test_the_rent_of_cells_that_begin_soon_goes_back_as_they_are_sold_again(later, found):
    backs = begin_slots(rent(RENTED, *later), 0, 1, 2)
    assert backs == [("t", slot, 39, back) for slot, back in enumerate(found)]


def sell_by_slot(*prices: float) -> tuple[Engine, ReleasedCells]:
    """Sell a job of whole cells at a price in each slot, and give it back one slot before."""
    engine = Engine(ZoneRules(horizon_slots=len(prices), money_quantum=1.0))
    engine.apply(events.NodeJoined(node(ask=10.0)))
    solved = events.PricesSolved(
        0, compute_price={"n": prices}, memory_price={"n": (0.0,) * len(prices)}
    )
    engine.transition(solved)
    whole = task(
        bid=1e6,
        rates={"g": 10.0},
        compute_demand=10.0 * len(prices),
        deadline_slot=len(prices) - 1,
    )
    sold = engine.transition(events.BidArrived(whole, 0))
    assert isinstance(sold, Decision)
    assert sold.parts
    assert sold.schedule
    giving = events.CellsReleased(
        "t",
        sold.schedule.cells,
        rest=replace(whole, bid=0.0),
        paid=int(sold.payment),
        rent=int(sold.parts.compute),
    )
    back = engine.transition(giving)
    assert isinstance(back, ReleasedCells)
    engine.transition(solved)
    engine.transition(events.BidArrived(replace(whole, id="b"), 0))
    return engine, back


def test_all_rent_goes_back_where_the_same_cells_are_sold_at_the_same_prices():
    engine, back = sell_by_slot(100.0, 0.0)
    assert (back.refund, back.waits) == (19, 980)
    # All of the rent is that of the first cell.
    assert begin_slots(engine, 0, 1) == [("t", 0, 980, 980)]


def test_a_dear_cell_that_begins_soon_does_not_hide_among_cheap_ones():
    engine, back = sell_by_slot(1000.0, *(0.0,) * 9)
    assert (back.refund, back.waits) == (98, 9800)
    assert begin_slots(engine, 0, 1) == [("t", 0, 9800, 9800)]


def test_cells_that_were_given_back_early_take_nothing_from_those_given_back_late():
    engine = Engine(ZoneRules(horizon_slots=8, money_quantum=1.0))
    engine.apply(events.NodeJoined(node(ask=10.0)))
    prices = events.PricesSolved(
        0, compute_price={"n": (40.0,) * 8}, memory_price={"n": (0.0,) * 8}
    )
    one = task(bid=1e5, rates={"g": 10.0}, compute_demand=10.0, arrival_slot=5)
    for name, arrival, waits in (("v", 0, 0), ("w", 3, 392), ("x", 5, None)):
        engine.transition(prices)
        bid = replace(one, id=name)
        engine.transition(events.BidArrived(bid, 0))
        if waits is not None:
            rest = replace(bid, bid=0.0, arrival_slot=arrival)
            cells = (Cell(5, "n"),)
            back = engine.transition(
                events.CellsReleased(name, cells, rest=rest, paid=410, rent=400)
            )
            assert isinstance(back, ReleasedCells)
            assert (back.refund, back.waits) == (401 - waits, waits)
    assert begin_slots(engine, 0, 1, 2, 3, 4, 5) == [("w", 5, 392, 392)]


def test_two_who_gave_a_cell_back_share_what_is_sold_again_by_its_room():
    again = {"rest": buy("b").task, "cells": CELLS, "paid": 400, "rent": 200}
    both = replace(RENTED, task_id="b", **(again | {"rest": replace(buy("b").task, bid=0.0)}))
    found = begin_slots(rent(RENTED, buy("b"), both, ask_less(5.0), buy("c")), 0)
    # The buyer pays 50 for the cell; b gave 10 back and t 4, and 10 are sold.
    assert [(name, rent) for name, _, _, rent in found] == [("t", 14), ("b", 35)]
    assert sum(rent for *_, rent in found) <= 50


def test_a_slot_that_the_log_skips_keeps_nobodys_rent():
    assert begin_slots(rent(RENTED), 2) == [("t", 0, 39, 39), ("t", 1, 39, 39)]


@pytest.mark.parametrize(("slot", "waits"), [(3, 78), (4, 39), (5, 0)])
def test_the_rent_of_cells_four_slots_away_goes_back_at_once(slot, waits):
    engine = Engine(ZoneRules(horizon_slots=8, money_quantum=1.0))
    engine.apply(events.NodeJoined(node(ask=100.0)))
    prices = {"n": (10.0,) * 8}
    engine.transition(events.PricesSolved(0, compute_price=prices, memory_price={"n": (0.0,) * 8}))
    late = {"arrival_slot": slot - 1, "deadline_slot": slot}
    engine.transition(events.BidArrived(task(bid=1_000.0, **late), 0))
    rest = task(bid=0.0, deadline_slot=slot)
    cells = (Cell(slot - 1, "n"), Cell(slot, "n"))
    back = engine.transition(events.CellsReleased("t", cells, rest=rest, paid=160, rent=80))
    assert isinstance(back, ReleasedCells)
    assert (back.refund, back.waits) == (156 - waits, waits)


def test_no_less_goes_back_at_once_than_was_promised():
    back = rent().transition(replace(RENTED, promised=100))
    assert isinstance(back, ReleasedCells)
    assert (back.refund, back.waits) == (100, 56)


def test_a_snapshot_knows_the_cells_that_were_given_back():
    engine = rent(RENTED, buy("b"))
    again = Engine.restore(json.loads(json.dumps(engine.snapshot())))
    assert again.snapshot() == engine.snapshot()
    assert begin_slots(again.replica(), 0, 1) == begin_slots(engine, 0, 1) != []
    assert begin_slots(engine, 2) == []


@pytest.mark.parametrize(("said", "is_ok"), [(80, True), (83, False), (77, False)])
def test_a_log_says_how_much_of_what_was_paid_is_rent(said, is_ok):
    engine = Engine(ZoneRules(horizon_slots=6, money_quantum=1.0))
    joined, solved = events.NodeJoined(node(ask=100.0)), ask_less(10.0)
    sale = events.BidArrived(task(bid=1_000.0), 0)
    audit = GiveBackAudit()
    *others, last = [
        audit.find_problem(event, engine.transition(event))
        for event in (joined, solved, sale, replace(RENTED, rent=said))
    ]
    assert others == [None] * 3
    assert (last is None) == is_ok
    assert is_ok or f"{said} is not the rent of that part" in (last or "")


@pytest.mark.parametrize(("promised", "refund"), [(30, 39), (60, 60)])
def test_no_less_goes_back_than_was_promised(promised, refund):
    change = events.NodeChanged(node(ask=50.0))
    back = begin(change, give_back(promised=promised))[-1].outcome
    assert isinstance(back, ReleasedCells)
    assert (back.price, back.refund) == (40, refund)


def test_cells_of_a_type_without_a_rate_are_worth_what_was_paid():
    change = events.NodeChanged(node(available_until=0, keeps_sold=True))
    rest = replace(REST, rates={"h": 4.0})
    back = begin(change, give_back(rest=rest))[-1].outcome
    assert isinstance(back, ReleasedCells)
    assert (back.price, back.refund) == (None, 78)


def test_cells_off_sale_are_worth_their_posted_rates():
    def post(rate: float) -> events.RatesPosted:
        return events.RatesPosted(0, 6, 6, {"n": NodeRate(ask=8.0, floor=1.0, by_block=(rate,))})

    engine = Engine(ZoneRules(horizon_slots=6, money_quantum=1.0, posts_rates=True))
    engine.apply(events.NodeJoined(node(ask=80.0)))
    engine.apply(post(10.0))
    sold = engine.transition(events.BidArrived(task(), 0))
    assert isinstance(sold, Decision)
    assert sold.payment == PAID
    # The rate is below the ask: nothing is for sale.
    engine.apply(post(5.0))
    back = engine.transition(give_back())
    assert isinstance(back, ReleasedCells)
    assert (back.price, back.refund) == (40, 39)


@pytest.mark.parametrize(("next_slot", "is_ok"), [(1, True), (0, False), (2, True)])
def test_a_job_that_ended_in_a_slot_that_the_log_does_not_know_begins_that_slot(next_slot, is_ok):
    rest = replace(REST, compute_demand=4.0, arrival_slot=2)
    log = begin(
        events.SlotAdvanced(0),
        events.CellsReleased("t", (), rest=rest, paid=0, begun=4.0),
        events.SlotAdvanced(next_slot),
    )
    assert verify(log, rules=ZoneRules(horizon_slots=6, money_quantum=1.0)).ok == is_ok


def test_verify_works_out_again_what_was_sold_again():
    engine = Engine(ZoneRules(horizon_slots=6, money_quantum=1.0))
    engine.apply(events.NodeJoined(node(ask=100.0)))
    price(engine, 10.0)
    snapshot = engine.snapshot()
    log = enter(engine, events.BidArrived(task(bid=1_000.0), 0))
    log.append(engine.apply(RENTED))
    log += enter(engine, buy("b"))
    log += [engine.apply(events.SlotAdvanced(slot)) for slot in (0, 1)]
    assert verify(log, snapshot).ok
    *before, last = log
    sold = SoldAgain("t", CELLS[1], 39, 39)
    assert last.outcome == GridChange(sold_again=(sold,))
    for forged in ((), (replace(sold, rent=40),), (replace(sold, waited=40),)):
        changed = chain_entry(
            position=last.position,
            event=last.event,
            outcome=GridChange(sold_again=forged),
            prev_hash=last.prev_hash,
        )
        found = verify([*before, changed], snapshot)
        assert (found.ok, found.position) == (False, last.position)
