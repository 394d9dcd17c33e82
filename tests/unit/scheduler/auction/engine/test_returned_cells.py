"""The rent of cells that an owner gives back shortly before they begin: back as they are sold."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.audit.verify import verify
from scheduler.auction.log import events
from scheduler.auction.log.chain import chain_entry
from scheduler.auction.log.codec import event_to_json, rules_to_json
from scheduler.auction.log.outcomes import GridChange, ReleasedCells, SoldAgain
from scheduler.types import Cell, Decision, NodeRate
from tests.unit.scheduler.auction.builders import enter, node, price, task

CELLS = (Cell(0, "n"), Cell(1, "n"))
RULES = ZoneRules(horizon_slots=8, money_quantum=1.0, late_slots=4)

#: Given back before its first slot, by a zone that sold it at a rent of 40 for each of its cells.
RENTED = events.CellsReleased("t", CELLS, rest=task(bid=0.0), paid=160)


def rent(*later: events.Event, rules: ZoneRules = RULES) -> Engine:
    engine = Engine(rules)
    engine.apply(events.NodeJoined(node(ask=100.0)))
    if rules.posts_rates:
        engine.apply(post(10.0))
    price(engine, 10.0)
    for event in (events.BidArrived(task(bid=1_000.0), 0), *later):
        engine.transition(event)
    return engine


def post(rate: float, ask: float = 10.0) -> events.RatesPosted:
    return events.RatesPosted(0, 8, 8, {"n": NodeRate(ask=ask, floor=1.0, by_block=(rate,))})


def buy(name: str, **changes: Any) -> events.BidArrived:
    """Give a purchase of all that is free of the two cells."""
    whole = {"bid": 1_000.0, "rates": {"g": 10.0}, "compute_demand": 20.0, "deadline_slot": 1}
    return events.BidArrived(task(name, **(whole | changes)), 0)


def ask_less(compute_price: float) -> events.PricesSolved:
    prices = {"n": (compute_price,) * 6}
    return events.PricesSolved(0, compute_price=prices, memory_price={"n": (0.0,) * 6})


def move(name: str, *cells: Cell) -> events.PlansMoved:
    units = 10.0 * len(cells)
    return events.PlansMoved((events.PlanMove(name, 5, units, 2.0, {"g": 10.0}, cells),), 0)


NODE = node(ask=100.0)
DEAR = replace(NODE, ask=1e6)


def _until(slot: int) -> events.NodeChanged:
    return events.NodeChanged(replace(NODE, available_until=slot))


def _slow(capacity: float) -> events.NodeChanged:
    return events.NodeChanged(replace(NODE, compute_capacity=capacity))


def _end(name: str, cells: tuple[Cell, ...], *, paid_share: float = 1.0) -> events.CellsReleased:
    """A job needs these of its cells no longer; so much of its price stays paid."""
    return events.CellsReleased(name, cells, paid_share=paid_share)


LATER = (Cell(2, "n"), Cell(3, "n"))
#: Another's job of later cells, which the market moves.
OTHER = buy("m", arrival_slot=2, deadline_slot=3)


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
        ((buy("b", rates={"g": 8.0}, compute_demand=16.0),), [19, 19]),
        # Who did not need what was given back has it not.
        ((buy("b", rates={"g": 6.0}, compute_demand=12.0),), [0, 0]),
        ((buy("b"), events.CellsReleased("b", CELLS)), [0, 0]),
        # Nobody could buy what the market has not.
        ((events.NodeLeft("n", from_slot=1),), [0, 39]),
        ((buy("b"), events.NodeLeft("n", from_slot=0)), [39, 39]),
        # Nor what its provider asks more for, or takes off sale, if only for a while.
        ((events.NodeChanged(DEAR),), [39, 39]),
        ((events.NodeChanged(DEAR), events.NodeChanged(NODE)), [39, 39]),
        ((events.NodeChanged(replace(NODE, ask=99.0)),), [0, 0]),
        ((events.NodeLeft("n", from_slot=1), events.NodeChanged(NODE)), [0, 39]),
        ((events.NodeLeft("n", from_slot=0), events.NodeJoined(NODE)), [39, 39]),
        ((events.NodeJoined(NODE),), [39, 39]),
        ((_until(0), events.NodeChanged(NODE)), [0, 39]),
        # Nor what the market puts another's job in.
        ((events.TaskReplanned(buy("r").task, 0),), [39, 39]),
        ((OTHER, move("m", *CELLS)), [39, 39]),
        # A buyer that is planned again on the same cells pays for them as before.
        ((buy("b"), events.TaskReplanned(buy("b").task, 0)), [39, 39]),
        ((ask_less(2.0), buy("b"), events.TaskReplanned(buy("b").task, 0)), [20, 20]),
        ((buy("b"), move("b", *CELLS)), [39, 39]),
        ((ask_less(2.0), buy("b"), move("b", *LATER), move("b", *CELLS)), [20, 20]),
        # So does one that the market moved to other cells, whoever has these then.
        ((buy("b"), move("b", *LATER)), [39, 39]),
        ((ask_less(2.0), buy("b"), move("b", *LATER)), [20, 20]),
        ((buy("b"), move("b", *LATER), ask_less(2.0), buy("c")), [39, 39]),
        ((ask_less(1.0), buy("b"), move("b", *LATER), buy("c")), [20, 20]),
        # Of 4 that were given back, nobody bought 2.
        ((buy("b", rates={"g": 8.0}, compute_demand=16.0), move("b", *LATER)), [19, 19]),
        # Unless it gives back what it has there: then it pays for none of them.
        ((buy("b"), move("b", *LATER), events.CellsReleased("b", LATER)), [0, 0]),
        ((buy("b"), move("b", *LATER), events.CellsReleased("b", LATER[:1])), [0, 0]),
        # One that has done its work and needs no cells any more pays for all of them.
        ((buy("b"), _end("b", CELLS)), [39, 39]),
        ((buy("b"), _end("b", CELLS[1:])), [39, 39]),
        ((ask_less(2.0), buy("b"), _end("b", CELLS)), [20, 20]),
        ((buy("b"), move("b", *LATER), _end("b", LATER)), [39, 39]),
        ((buy("b"), move("b", *LATER), _end("b", LATER[1:])), [39, 39]),
        ((ask_less(1.0), buy("b"), _end("b", CELLS), buy("c")), [20, 20]),
        # Of 4 that were given back, somebody pays for 2.
        ((buy("b"), _end("b", CELLS, paid_share=0.8)), [19, 19]),
        ((buy("b"), move("b", *LATER), _end("b", LATER, paid_share=0.8)), [19, 19]),
        ((buy("b"), move("b", *LATER), _end("b", LATER, paid_share=0.0)), [0, 0]),
        # Nor does one that has no plan any more: the market fails it.
        ((buy("b"), events.TaskReplanned(replace(buy("b").task, rates={"x": 1.0}), 0)), [0, 0]),
        # Of 4 that were given back, 2 could not be bought while the node was slower.
        ((_slow(2.0),), [19, 19]),
        ((_slow(2.0), events.NodeChanged(NODE)), [19, 19]),
        ((_slow(2.0), events.NodeChanged(NODE), buy("b")), [39, 39]),
        ((_slow(4.0), events.NodeChanged(NODE)), [0, 0]),
        # One that became faster was sold no less.
        ((buy("b"), _slow(20.0)), [39, 39]),
        # A node that fewer could use for a while is one that its provider took off sale.
        (
            (events.NodeChanged(replace(NODE, memory_capacity=1.0)), events.NodeChanged(NODE)),
            [39, 39],
        ),
    ],
)
def test_the_rent_of_cells_that_begin_soon_goes_back_as_they_are_sold_again(later, found):
    backs = begin_slots(rent(RENTED, *later), 0, 1, 2)
    assert backs == [("t", slot, 39, back) for slot, back in enumerate(found)]


@pytest.mark.parametrize(
    ("given_back", "back"), [((), 39), ((6,), 19), ((5, 6), 0), ((2, 3, 4, 5, 6), 0), ((1, 6), 19)]
)
def test_a_buyer_that_was_moved_pays_for_the_part_of_its_job_that_it_keeps(given_back, back):
    """Of 10 that it bought of each cell, 6 are others than those that were given back."""
    wide = tuple(Cell(slot, "n") for slot in range(2, 7))
    moved = events.PlanMove("b", 7, 20.0, 2.0, {"g": 4.0}, wide)
    again = events.CellsReleased(
        "b",
        tuple(Cell(slot, "n") for slot in given_back),
        rest=replace(buy("b").task, bid=0.0, deadline_slot=7),
        paid=200,
    )
    engine = rent(RENTED, buy("b"), events.PlansMoved((moved,), 0), again)
    found = [one for one in begin_slots(engine, 0, 1) if one[0] == "t"]
    assert found == [("t", slot, 39, back) for slot in (0, 1)]


def test_a_slower_node_keeps_no_more_than_the_rent_of_the_room_that_it_had():
    """Half of what was given back could be bought, and nobody has it."""
    engine = rent(RENTED, _slow(2.0))
    changed = engine.transition(events.SlotAdvanced(0))
    assert changed == GridChange(sold_again=(SoldAgain("t", CELLS[0], 39, 19, unsold=2.0),))


def test_who_had_a_part_of_the_cell_before_neither_pays_for_it_nor_takes_it():
    small = buy("s", rates={"g": 4.0}, compute_demand=8.0)
    moved = events.PlansMoved((events.PlanMove("s", 5, 8.0, 2.0, {"g": 4.0}, CELLS),), 0)
    engine = rent(small, RENTED, moved, ask_less(0.0), buy("b", rates={"g": 4.0}))
    assert begin_slots(engine, 0) == [("t", 0, 39, 0)]


def test_cells_that_posted_rates_take_off_sale_for_a_while_keep_nobodys_rent():
    engine = rent(RENTED, rules=replace(RULES, posts_rates=True))
    for ask in (11.0, 10.0):
        engine.transition(post(10.0, ask=ask))
    assert begin_slots(engine, 0, 1) == [("t", slot, 39, 39) for slot in (0, 1)]


@pytest.mark.parametrize("stays", [False, True])
def test_cells_whose_node_asks_more_than_is_paid_keep_nobodys_rent(stays):
    engine = rent(RENTED, rules=replace(RULES, posts_rates=True))
    if not stays:
        engine.transition(post(10.0, ask=11.0))
    back = 0 if stays else 39
    assert begin_slots(engine, 0, 1) == [("t", slot, 39, back) for slot in (0, 1)]


def test_the_log_says_how_much_of_the_room_nobody_has():
    engine = rent(RENTED, buy("b", rates={"g": 8.0}, compute_demand=16.0))
    changed = engine.transition(events.SlotAdvanced(0))
    assert changed == GridChange(sold_again=(SoldAgain("t", CELLS[0], 39, 19, unsold=2.0),))


def sell_by_slot(*prices: float) -> tuple[Engine, ReleasedCells]:
    """Sell a job of whole cells at a price in each slot, and give it back one slot before."""
    engine = Engine(replace(RULES, horizon_slots=len(prices)))
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
    assert sold.schedule
    giving = events.CellsReleased(
        "t", sold.schedule.cells, rest=replace(whole, bid=0.0), paid=int(sold.payment)
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
    engine = Engine(RULES)
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
            back = engine.transition(
                events.CellsReleased(name, (Cell(5, "n"),), rest=rest, paid=410)
            )
            assert isinstance(back, ReleasedCells)
            assert (back.refund, back.waits) == (401 - waits, waits)
    assert begin_slots(engine, 0, 1, 2, 3, 4, 5) == [("w", 5, 392, 392)]


def test_two_who_gave_a_cell_back_share_what_is_sold_again_by_its_rent():
    again = {"rest": replace(buy("b").task, bid=0.0), "cells": CELLS, "paid": 400}
    engine = rent(RENTED, buy("b"), replace(RENTED, task_id="b", **again), ask_less(5.0), buy("c"))
    found = begin_slots(engine, 0)
    # The buyer pays 50 for the cell; b gave 10 back and t 4, and 10 are sold.
    assert [(name, rent) for name, _, _, rent in found] == [("t", 14), ("b", 35)]
    assert sum(rent for *_, rent in found) <= 50


@pytest.mark.parametrize("late", range(4))
def test_what_goes_back_depends_on_when_its_owner_gave_it_back(late):
    """The next slot's cell keeps its rent, however late the market's turn is."""
    rest = task(bid=0.0, arrival_slot=1, deadline_slot=3, compute_demand=8.0)
    cells = tuple(Cell(slot, "n") for slot in (1, 2))
    engine = Engine(RULES)
    engine.apply(events.NodeJoined(node(ask=100.0)))
    price(engine, 10.0)
    engine.transition(events.BidArrived(replace(rest, bid=1_000.0), 0))
    engine.transition(events.CellsReleased("t", cells, rest=rest, paid=160, slot=0))
    found = begin_slots(engine, *range(late, 4))
    # The log skips slots before the turn: these cells could have been sold and were not on sale.
    assert found == [("t", 1, 39, 0), ("t", 2, 39, 0 if late < 2 else 39)]


@pytest.mark.parametrize(("slot", "waits"), [(3, 78), (4, 39), (5, 0)])
@pytest.mark.parametrize("late_turn", [False, True])
def test_the_rent_of_cells_four_slots_away_goes_back_at_once(slot, waits, late_turn):
    engine = Engine(RULES)
    engine.apply(events.NodeJoined(node(ask=100.0)))
    prices = {"n": (10.0,) * 8}
    engine.transition(events.PricesSolved(0, compute_price=prices, memory_price={"n": (0.0,) * 8}))
    engine.transition(
        events.BidArrived(task(bid=1_000.0, arrival_slot=slot - 1, deadline_slot=slot), 0)
    )
    # Its owner ends it in the slot before the first, or the turn is a slot late.
    begin = 1 if late_turn else 0
    rest = task(bid=0.0, arrival_slot=begin, deadline_slot=slot)
    cells = (Cell(slot - 1, "n"), Cell(slot, "n"))
    event = events.CellsReleased("t", cells, rest=rest, paid=160)
    if late_turn:
        engine.transition(events.SlotAdvanced(0))
        event, waits = replace(event, slot=0), {3: 78, 4: 78, 5: 39}[slot]
    back = engine.transition(event)
    assert isinstance(back, ReleasedCells)
    assert (back.refund, back.waits) == (156 - waits, waits)


def test_nothing_waits_under_rules_that_do_not_say_so():
    before = replace(RULES, late_slots=0)
    assert "late_slots" not in rules_to_json(before)
    assert "slot" not in event_to_json(RENTED)
    engine = rent(rules=before)
    assert engine.transition(RENTED) == ReleasedCells(cells=CELLS, price=160, refund=156)
    assert begin_slots(engine, 0, 1) == []


def test_no_less_goes_back_at_once_than_was_promised():
    back = rent().transition(replace(RENTED, promised=100))
    assert isinstance(back, ReleasedCells)
    assert (back.refund, back.waits) == (100, 56)


@pytest.mark.parametrize("more", [0, 1, 30, 39, 60])
def test_what_was_shown_is_what_goes_back_where_later_cells_do_too(more):
    # Of two cells, the rent of the first waits: 117 of 156 go back at once, as was shown.
    engine = Engine(RULES)
    engine.apply(events.NodeJoined(node(ask=100.0)))
    prices = {"n": (10.0,) * 8}
    engine.transition(events.PricesSolved(0, compute_price=prices, memory_price={"n": (0.0,) * 8}))
    bought = task(bid=1_000.0, arrival_slot=3, deadline_slot=4)
    engine.transition(events.BidArrived(bought, 0))
    rest = task(bid=0.0, arrival_slot=0, deadline_slot=4)
    cells = (Cell(3, "n"), Cell(4, "n"))
    event = events.CellsReleased("t", cells, rest=rest, paid=160)
    shown = engine.replica().transition(event)
    assert isinstance(shown, ReleasedCells)
    assert (shown.refund, shown.waits) == (117, 39)
    back = engine.transition(replace(event, promised=117 + more))
    assert isinstance(back, ReleasedCells)
    assert (back.refund, back.waits) == (117 + more, max(0, 39 - more))


def test_no_more_waits_than_the_rent_that_the_work_has_now():
    # It was sold at a rent of 80, and of its price now the rent is 16.
    back = rent(ask_less(2.0)).transition(RENTED)
    assert isinstance(back, ReleasedCells)
    assert (back.price, back.refund, back.waits) == (96, 78, 16)


def test_a_snapshot_knows_the_cells_that_were_given_back():
    small = buy("s", rates={"g": 4.0}, compute_demand=8.0)
    engine = rent(small, RENTED, buy("b", rates={"g": 4.0}, compute_demand=8.0), _until(0))
    again = Engine.restore(json.loads(json.dumps(engine.snapshot())))
    assert again.snapshot() == engine.snapshot()
    assert begin_slots(again.replica(), 0, 1) == begin_slots(engine, 0, 1) != []
    assert begin_slots(engine, 2) == []


@pytest.mark.parametrize("slot", [0, 3])
def test_a_rest_does_not_begin_before_it_was_given_back(slot):
    with pytest.raises(ValueError, match="could begin before it was given back"):
        rent().transition(replace(RENTED, slot=slot))


def test_verify_works_out_again_what_was_sold_again():
    engine = Engine(RULES)
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
    for forged in (
        (),
        (replace(sold, rent=40),),
        (replace(sold, waited=40),),
        (replace(sold, unsold=1.0),),
    ):
        changed = chain_entry(
            position=last.position,
            event=last.event,
            outcome=GridChange(sold_again=forged),
            prev_hash=last.prev_hash,
        )
        found = verify([*before, changed], snapshot)
        assert (found.ok, found.position) == (False, last.position)
