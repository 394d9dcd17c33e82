"""The unit of the descent's steps: the worth of a sample where work reaches the room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.auction.prices.capacity import make_capacity
from scheduler.auction.prices.demand_response import Demand
from scheduler.auction.prices.type_pools import pool_by_type
from scheduler.types import Task
from tests.unit.scheduler.auction.builders import node, task

POOLS, _ = pool_by_type(make_capacity([node()], base_memory=0.0, first_slot=0, slots=6))
#: Worths of 10, 9 .. 1 a sample, 8 samples each.
DAY = [task(str(n), bid=8.0 * n) for n in range(10, 0, -1)]


def unit(tasks: list[Task], *, room: float) -> float:
    return Demand(tasks, POOLS).find_marginal_worth(room)


@pytest.mark.parametrize(
    ("room", "worth"), [(0.0, 10.0), (8.0, 10.0), (9.0, 9.0), (24.0, 8.0), (40.0, 6.0), (1e9, 6.0)]
)
def test_it_is_the_worth_at_which_work_fills_the_room_or_half_of_all_work(
    room: float, worth: float
) -> None:
    assert unit(DAY, room=room) == worth


def test_work_counts_and_not_the_number_of_bids() -> None:
    worthless = [task(f"w{n}", bid=1e-6, compute_demand=1e-3) for n in range(1000)]
    assert unit([*worthless, *DAY], room=24.0) == 8.0
    tiny = [replace(DAY[0], id="tiny", bid=1e9, compute_demand=1.0)]
    assert unit([*tiny, *DAY], room=24.0) == 8.0
    assert unit([], room=24.0) == 0.0
    assert unit([task(compute_demand=0.0)], room=24.0) == 0.0
