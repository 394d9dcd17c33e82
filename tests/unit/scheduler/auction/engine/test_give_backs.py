"""A job that its owner gives back: what goes back for it, and that a log cannot say otherwise."""

from __future__ import annotations

import math
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
from scheduler.auction.log.outcomes import GridChange, ReleasedCells
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


def publish(log: list[ChainEntry]) -> list[dict[str, Any]]:
    """The log as it is published."""
    return [
        {
            "position": entry.position,
            "event": event_to_json(entry.event),
            "outcome": outcome_to_json(entry.outcome),
            "prev_hash": entry.prev_hash,
            "hash": entry.hash,
        }
        for entry in log
    ]


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


@pytest.mark.parametrize(
    ("share", "refunded", "problem"),
    [
        (1.0, False, None),
        (0.5, True, None),
        (0.6, True, "0.6 of a job's price stays paid, most of which went back"),
    ],
)
def test_a_job_that_is_refunded_for_the_most_part_pays_no_more_than_the_rest(
    share, refunded, problem
):
    event = events.CellsReleased("t", CELLS, paid_share=share, refunded=refunded)
    audit = GiveBackAudit()
    found = [audit.find_problem(entry.event, entry.outcome) for entry in begin(event)]
    assert found == [None] * (len(found) - 1) + [problem]


@pytest.mark.parametrize(
    ("event", "then", "problem"),
    [
        (events.CellsReleased("t", CELLS[1:], paid_share=1.0), events.NodeLeft("n", 9), None),
        (events.CellsReleased("t", CELLS, paid_share=0.9), events.NodeLeft("n", 9), None),
        # It ended in a slot that its zone did not know yet.
        (events.CellsReleased("t", CELLS[1:], paid_share=0.9), events.SlotAdvanced(0), None),
        (
            events.CellsReleased("t", CELLS[1:], paid_share=0.9),
            events.NodeLeft("n", 9),
            "a job ended in slot 0, which did not begin",
        ),
        (
            events.CellsReleased("t", CELLS[:1]),
            events.SlotAdvanced(0),
            "a job ended in slot 1, which did not begin",
        ),
    ],
)
def test_a_job_that_keeps_cells_to_come_pays_its_whole_price(event, then, problem):
    """Else a house could keep an owner's rent of a cell for which its buyer goes on paying."""
    log = begin(event, then)
    audit = GiveBackAudit()
    assert audit.find_problem(events.SlotAdvanced(-1), GridChange()) is None
    found = [audit.find_problem(entry.event, entry.outcome) for entry in log]
    assert found == [None] * (len(found) - 1) + [problem]


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_no_more_than_the_price_stays_paid(share):
    with pytest.raises(ValueError, match="share of the price paid of task t"):
        begin(events.CellsReleased("t", CELLS, paid_share=share))


def test_what_is_given_back_at_its_value_says_no_share_that_stays_paid():
    begin(give_back())
    with pytest.raises(ValueError, match="share of the price paid of task t"):
        begin(give_back(paid_share=0.1))


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
    for found in (verify(log, rules=rules), verify_public(publish(log), rules=rules)):
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


TAKEN_BACK = events.CellsReleased("t", CELLS)


@pytest.mark.parametrize(
    ("event", "forged"),
    [
        (give_back(), {"refund": 77}),
        (give_back(), {"refund": 79}),
        (give_back(), {"price": 79.0}),
        # Where nothing is due, the true entry does not name it.
        (TAKEN_BACK, {"refund": 500}),
        (TAKEN_BACK, {"price": 500.0}),
    ],
)
def test_a_log_that_pays_another_refund_does_not_verify(event, forged):
    *log, last = begin(event)
    outcome = replace(last.outcome, **forged)
    log.append(
        chain_entry(
            position=last.position, event=last.event, outcome=outcome, prev_hash=last.prev_hash
        )
    )
    rules = ZoneRules(horizon_slots=6, money_quantum=1.0)
    for found in (verify(log, rules=rules), verify_public(publish(log), rules=rules)):
        assert (found.ok, found.position) == (False, last.position)


def test_prices_of_the_place_of_the_entry_count():
    engine = Engine(ZoneRules(horizon_slots=6, money_quantum=1.0))
    engine.apply(events.NodeJoined(node(ask=100.0)))
    price(engine, 10.0)
    sold = engine.transition(events.BidArrived(task(bid=1_000.0), 0))
    assert isinstance(sold, Decision)
    assert sold.payment == 160
    price(engine, 5.0)
    back = engine.transition(give_back(paid=160))
    assert isinstance(back, ReleasedCells)
    assert (back.price, back.refund) == (120, 117)


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
