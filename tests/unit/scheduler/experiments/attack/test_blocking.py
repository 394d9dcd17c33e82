"""Room that is bought early and given back late."""

from __future__ import annotations

import pytest

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.log import events
from scheduler.experiments.attack.blocking import Blocker, measure_day
from scheduler.experiments.attack.decoys import DecoySize, make_zones
from tests.unit.scheduler.auction.builders import node, task

SMALL = DecoySize(days=1, slots=18, futures=1)


@pytest.mark.parametrize(
    ("late_slots", "rivals", "refunded", "resold"),
    [
        # Of 480 for each of two jobs 98 % go back at once where no rent waits.
        (0, 0, 2 * 470, 0),
        # Four of six cells begin soon: of the rent of 39 in each nothing comes back.
        (4, 0, 2 * (470 - 4 * 39), 0),
        (4, 1, 2 * (470 - 4 * 39), 2 * 4 * 39),
    ],
)
def test_a_blocker_buys_gives_back_and_notes_what_was_sold_again(
    late_slots, rivals, refunded, resold
):
    engine = Engine(ZoneRules(horizon_slots=20, money_quantum=1.0, late_slots=late_slots))
    engine.transition(events.NodeJoined(node(ask=100.0)))
    priced, free = {"n": (10.0,) * 20}, {"n": (0.0,) * 20}
    engine.transition(events.PricesSolved(0, compute_price=priced, memory_price=free))
    blocker = Blocker([task(memory_demand=0.0)], begins=(6,))
    for slot in range(12):
        blocker.act(engine, slot, engine.transition(events.SlotAdvanced(slot)))
        if slot < 6:
            assert len(engine.reservations()) == (12 if 1 <= slot < 5 else 0)
        if slot == 5 and rivals:
            whole = {"rates": {"g": 10.0}, "compute_demand": 60.0, "deadline_slot": 11}
            bid = task("b", bid=1e6, arrival_slot=6, **whole)
            engine.transition(events.BidArrived(bid, slot))
    assert (blocker.paid, blocker.refunded, blocker.resold) == (960, refunded, resold)


def test_a_day_is_the_same_each_time_and_its_blocks_cost_something():
    zone = make_zones(SMALL)[1]
    day = measure_day(zone, seed=0, size=SMALL)
    assert 0 < day.cost < day.bought
    assert day.net == day.cost - day.harm
    assert measure_day(zone, seed=0, size=SMALL) == day
