"""Which bids count for forecasts, on a zone of one node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from random import Random
from statistics import fmean

import pytest

from scheduler.auction.prices import EmptyZone, select_counted
from scheduler.auction.prices.forecast import forecast_futures
from scheduler.auction.prices.forecast_span import choose_span
from scheduler.types import LaborVendor, Task
from tests.unit.scheduler.auction.builders import node, task

ZONE = EmptyZone([node(ask=5.0)], base_memory=1.0)


@pytest.mark.parametrize(
    ("changes", "could"),
    [
        # Whatever it is worth.
        ({"bid": 0.0}, True),
        ({"memory_demand": 9.0}, True),
        ({"memory_demand": 9.1}, False),
        ({"deadline_slot": 0}, False),
        ({"deadline_slot": 1}, True),
        ({"rates": {"g": 10.1}}, False),
        ({"rates": {"other": 4.0}}, False),
        ({"compute_demand": 0.0}, False),
        ({"vendors": (LaborVendor("v", 95.0, 4),)}, True),
        ({"vendors": (LaborVendor("v", 95.0, 5),)}, False),
        ({"vendors": (LaborVendor("v", 1.0, 5), LaborVendor("w", 9.0, 4))}, True),
        # Wherever its window lies.
        ({"arrival_slot": 10**6, "deadline_slot": 10**6 + 1}, True),
    ],
)
def test_a_bid_counts_if_an_empty_zone_would_serve_it(changes: dict, could: bool) -> None:
    assert ZONE.could_serve(task(**changes)) is could


def count(bids: Iterable[Task], prefix: str) -> int:
    return sum(bid.id.startswith(prefix) for bid in bids)


def test_an_owners_refused_work_counts_up_to_what_it_bought_and_a_ninth_beyond() -> None:
    strangers = [task(f"s{n}") for n in range(40)]
    bought = [task(f"w{n}", owner="f") for n in range(18)]
    refused = [task(f"r{n}", owner="f") for n in range(70)]
    past = [task("past", owner="f")]
    won = {bid.id for bid in (*bought, *past)}
    bids = [*strangers, *bought, *refused]
    today, before = select_counted([bids, past], ZONE, won=won)
    # 57 are backed; of the others a ninth of the 75 that count by then.
    assert (count(today, "w"), count(today, "r") + count(today, "s")) == (18, 57 + 8)
    assert 57 <= count(today, "r") < 65
    assert [bid for bid in bids if bid in today] == list(today)
    assert before == tuple(past)


def test_where_buyers_are_new_as_much_refused_work_counts_as_they_bought() -> None:
    buyers, losers = [task(f"b{n}") for n in range(10)], [task(f"l{n}") for n in range(40)]
    known = [task("k", owner="k"), task("past", owner="k")]
    won = {bid.id for bid in (*buyers, *known)}
    today, _ = select_counted([[*losers, *buyers, known[0]], known[1:]], ZONE, won=won)
    assert (count(today, "b"), count(today, "l"), count(today, "k")) == (10, 10, 1)


def test_what_a_new_owner_bought_lets_its_own_bids_count_or_others_and_not_both() -> None:
    bought = [task(f"b{n}", owner="f") for n in range(10)]
    refused = [task(f"r{n}", owner="f") for n in range(10)]
    losers = [task(f"l{n}") for n in range(40)]
    won = {bid.id for bid in bought}
    [today] = select_counted([[*bought, *refused, *losers]], ZONE, won=won)
    # A ninth of twenty, and one more: three always count.
    assert (count(today, "b"), count(today, "r"), count(today, "l")) == (10, 10, 3)


def test_three_refused_bids_always_count_and_a_tiny_job_backs_one() -> None:
    losers = [task(f"l{n}", owner="f") for n in range(40)]
    [three] = select_counted([losers], ZONE)
    assert len(three) == 3
    assert all(bid in losers for bid in three)
    tiny = task("tiny", owner="f", compute_demand=1.0)
    # It takes a slot, which is half of what they would: three times as much is one and a half.
    [found] = select_counted([[*losers, tiny]], ZONE, won={"tiny"})
    assert [bid.compute_demand for bid in found] == [4.0, 8.0, 4.0, 4.0, 1.0]
    assert [bid.bid for bid in found] == [50.0, 100.0, 50.0, 50.0, 100.0]


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
    usual = [replace(giant, compute_demand=8.0, bid=50.0) for giant in giants]
    assert today[:3] == tuple(bought)
    assert len(today) == 6
    assert all(giant in usual for giant in today[3:])


def test_giants_that_lose_hide_no_more_than_they_ask_for_themselves() -> None:
    buyers, losers = [task(f"b{n}") for n in range(60)], [task(f"l{n}") for n in range(60)]
    giants = [task(f"g{n}", compute_demand=36.0, deadline_slot=10) for n in range(20)]
    won = {bid.id for bid in buyers}
    [calm] = select_counted([[*losers, *buyers]], ZONE, won=won)
    [found] = select_counted([[*giants, *losers, *buyers]], ZONE, won=won)
    assert len(calm) == 120
    # Each counts as three usual bids, and no work is lost but what is left over at the end.
    assert {bid.compute_demand for bid in found if bid.id.startswith("g")} == {24.0}
    assert sum(bid.compute_demand for bid in found) > 120 * 8.0 - 24.0
    assert count(found, "l") >= 60 - 3 * 20


@pytest.mark.parametrize("names", [1, 60])
def test_many_refused_bids_of_little_work_count_no_more_than_as_many_usual_ones(names: int) -> None:
    owners = [f"o{n}" for n in range(9)]
    days = [[task(f"{day}{n}", owner=owners[n % 9]) for n in range(54)] for day in "tp"]
    won = {bid.id for bid in chain(*days)}
    decoys = [
        task(f"d{n}", arrival_slot=3, owner=f"d{n % names}", compute_demand=1.0, bid=2.1)
        for n in range(600)
    ]
    # One tiny job bought: half a usual one, so that one and a half are backed.
    decoys += [task("tiny", arrival_slot=3, owner="d0", compute_demand=1.0)]
    days[0] += decoys
    today, _ = select_counted(days, ZONE, won=won | {"tiny"})
    # Besides they come in the last of two stretches that have room for three each.
    assert count(today, "d") == 4


def test_bids_that_come_late_hide_no_strangers_who_came_before() -> None:
    owners = [f"o{n}" for n in range(9)]
    days = [[task(f"{day}{n}", owner=owners[n % 9]) for n in range(54)] for day in "tp"]
    won = {bid.id for bid in chain(*days)}
    strangers = [task(f"s{n}") for n in range(6)]
    flood = [task(f"f{n}", owner="f") for n in range(600)]
    today, _ = select_counted(
        [[*strangers[:3], *days[0][:27], *strangers[3:], *flood, *days[0][27:]], days[1]],
        ZONE,
        won=won,
    )
    # Each stretch has room for three.
    assert count(today, "s") >= 3
    assert count(today, "s") + count(today, "f") == 6


@pytest.mark.parametrize("share", [0.1, 0.2, 0.3, 0.4])
def test_a_steady_busy_market_expects_what_counts_a_slot_however_few_win(share: float) -> None:
    day, each, expected = 24, 20, list[float]()
    for seed in range(4):
        rng, bids, won = Random(seed), list[Task](), set[str]()
        slot = 6 * day
        for at in range(1, slot + 1):
            names = [f"{seed}-{at}-{n}" for n in range(each)]
            bids += [
                task(name, arrival_slot=at, deadline_slot=at + 8, owner=f"o{rng.randrange(20)}")
                for name in names
            ]
            won.update(names[: round(share * each)])
        span = choose_span(day_slots=day, began=1, slot=slot + 1, last_slot=slot + day, past_days=2)
        assert len(span.past_starts) == 2
        days = [[bid for bid in bids if bid.arrival_slot >= span.day_start]]
        for start in span.past_starts:
            days.append(
                [
                    replace(bid, arrival_slot=bid.arrival_slot - start)
                    for bid in bids
                    if start <= bid.arrival_slot < start + span.length
                ]
            )
        today, *past = select_counted(days, ZONE, won=won)
        futures = forecast_futures(
            slot=span.slot,
            last_slot=span.last_slot,
            day_start=span.day_start,
            today=today,
            past_days=past,
            most=300,
            futures=6,
            seed=seed,
        )
        expected.append(sum(len(one.tasks) * one.weight for one in futures) / len(futures))
    # Those that win, three times as many refused ones and a ninth; at most all.
    assert fmean(expected) == pytest.approx(day * each * min(share * 4 * 10 / 9, 1), rel=0.15)


def test_what_two_days_that_overlap_both_hold_was_bought_once_and_counts_alike() -> None:
    bought = task("w", owner="f")
    refused = [task(f"r{n}", owner="f") for n in range(9)]
    today, before = select_counted([[bought, *refused], [bought]], ZONE, won={"w"})
    # Three are backed, and three always count.
    assert (len(today), before) == (7, (bought,))
    assert select_counted([[bought, *refused]] * 2, ZONE, won={"w"}) == [today, today]


def test_rates_in_another_order_are_the_same_rates() -> None:
    zone = EmptyZone([node(ask=5.0)], base_memory=1.0)
    for rates in ({"g": 4.0, "h": 1.0}, {"h": 1.0, "g": 4.0}):
        assert zone.could_serve(task(rates=rates))
    assert len(zone._fastest) == 1
