"""Which bids count for forecasts, on a zone of one node."""

from __future__ import annotations

import pytest

from scheduler.auction.prices import EmptyZone, select_counted
from scheduler.auction.prices.counted_bids import find_most
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


@pytest.mark.parametrize(
    ("others", "most"),
    [([1], 3), ([1] * 29, 3), ([1] * 50, 5), ([20, 20, 20, 20], 20), ([1, 1, 1, 300], 30)],
)
def test_of_an_owner_three_bids_count_a_tenth_of_the_others_or_as_many_as_the_middle_ones(
    others: list[int], most: int
) -> None:
    assert find_most(others) == most


def test_a_sole_owner_counts_whole() -> None:
    assert find_most([]) > 10**9


def test_what_an_owner_won_counts_whole_and_as_many_of_its_refused_bids() -> None:
    others = [task(str(n)) for n in range(40)]
    flood = [task(f"f{n}", owner="f") for n in range(100)]
    assert len(select_counted([*others, *flood], ZONE)) == 40 + 4
    # The first 30 won; of the 70 refused the latest 30 count.
    won = {bid.id for bid in flood[:30]}
    counted = select_counted([*others, *flood], ZONE, won=won)
    assert counted == (*others, *flood[:30], *flood[70:])
    assert select_counted(flood, ZONE, won=won) == tuple(flood)


def test_rates_in_another_order_are_the_same_rates() -> None:
    zone = EmptyZone([node(ask=5.0)], base_memory=1.0)
    for rates in ({"g": 4.0, "h": 1.0}, {"h": 1.0, "g": 4.0}):
        assert zone.could_serve(task(bid=9.0, rates=rates))
    assert len(zone._options) == 1
