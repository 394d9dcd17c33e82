"""Which bids count for forecasts, on a zone of one node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.auction.prices import EmptyZone, select_counted
from scheduler.types import LaborVendor
from tests.unit.scheduler.auction.builders import node, task

#: Two slots of 4 of 10 samples, at an ask of 5, cost 4.
ZONE = EmptyZone([node(ask=5.0)], base_memory=1.0)


@pytest.mark.parametrize(
    ("changes", "could"),
    [
        ({"bid": 4.0}, False),
        ({"bid": 4.0001}, True),
        ({"memory_demand": 9.0}, True),
        ({"memory_demand": 9.1}, False),
        ({"deadline_slot": 0}, False),
        ({"deadline_slot": 1}, True),
        ({"rates": {"g": 10.1}}, False),
        ({"rates": {"other": 4.0}}, False),
        ({"compute_demand": 0.0}, False),
        # A tiny job pays a whole slot: 2.
        ({"compute_demand": 0.001, "bid": 2.0}, False),
        ({"compute_demand": 0.001, "bid": 2.1}, True),
        ({"vendors": (LaborVendor("v", 96.0, 0),)}, False),
        ({"vendors": (LaborVendor("v", 95.0, 4),)}, True),
        ({"vendors": (LaborVendor("v", 95.0, 5),)}, False),
        # Wherever its window lies.
        ({"arrival_slot": 10**6, "deadline_slot": 10**6 + 1}, True),
    ],
)
def test_a_bid_counts_if_an_empty_zone_would_serve_it(changes: dict, could: bool) -> None:
    assert ZONE.could_serve(task(**changes)) is could


def test_an_owners_refused_work_counts_up_to_what_it_bought_and_a_ninth_beyond() -> None:
    strangers = [task(f"s{n}") for n in range(40)]
    bought = [task(f"w{n}", owner="f") for n in range(18)]
    refused = [task(f"r{n}", owner="f") for n in range(30)]
    past = [task("past", owner="f")]
    won = {bid.id for bid in (*bought, *past)}
    today, before = select_counted([[*strangers, *bought, *refused], past], ZONE, won=won)
    # Nineteen are backed; of the others a ninth of the 37 bids that count by then, the latest.
    assert today == (*bought, *refused[30 - 19 - 4 :])
    assert before == tuple(past)


def test_where_buyers_are_new_as_much_refused_work_counts_as_they_bought() -> None:
    buyers, losers = [task(f"b{n}") for n in range(10)], [task(f"l{n}") for n in range(40)]
    known = [task("k", owner="k"), task("past", owner="k")]
    won = {bid.id for bid in (*buyers, *known)}
    today, _ = select_counted([[*losers, *buyers, known[0]], known[1:]], ZONE, won=won)
    assert today == (*losers[30:], *buyers, known[0])


def test_three_refused_bids_always_count_and_a_tiny_job_backs_no_other() -> None:
    losers = [task(f"l{n}", owner="f") for n in range(40)]
    tiny = task("tiny", owner="f", compute_demand=1.0)
    assert select_counted([losers], ZONE) == [tuple(losers[37:])]
    small = [replace(bid, compute_demand=1.0, bid=bid.bid / 8.0) for bid in losers[37:]]
    assert select_counted([[*losers, tiny]], ZONE, won={"tiny"}) == [(*small, tiny)]


def test_a_giant_that_loses_counts_with_as_much_work_as_is_usual() -> None:
    bought = [task(f"w{n}", compute_demand=float(n)) for n in (4, 8, 12)]
    labor = (LaborVendor("a", 20.0, 0), LaborVendor("b", 10.0, 0))
    giants = [
        task(f"g{n}", owner="f", compute_demand=16.0, bid=90.0, vendors=labor) for n in range(4)
    ]
    past = [task(f"past {bid.id}", owner=bid.id) for bid in bought]
    bought = [replace(bid, owner=bid.id) for bid in bought]
    won = {bid.id for bid in (*bought, *past)}
    today, _ = select_counted([[*bought, *giants], past], ZONE, won=won)
    # A ninth of 24 samples is less than one of them needs; half of the rest is worth 40.
    usual = [replace(giant, compute_demand=8.0, bid=50.0) for giant in giants[1:]]
    assert today == (*bought, *usual)


def test_what_two_days_that_overlap_both_hold_was_bought_once() -> None:
    bought = task("w", owner="f")
    refused = [task(f"r{n}", owner="f") for n in range(9)]
    today, before = select_counted([[bought, *refused], [bought]], ZONE, won={"w"})
    # One is backed, and three always count.
    assert (today, before) == ((bought, *refused[5:]), (bought,))


def test_rates_in_another_order_are_the_same_rates() -> None:
    zone = EmptyZone([node(ask=5.0)], base_memory=1.0)
    for rates in ({"g": 4.0, "h": 1.0}, {"h": 1.0, "g": 4.0}):
        assert zone.could_serve(task(bid=9.0, rates=rates))
    assert len(zone._options) == 1
