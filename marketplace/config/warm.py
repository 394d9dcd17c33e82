"""``python -m marketplace.config.warm``: compile the auction once, so that no bid waits for it.

The machine code is kept in the user's cache; run again, this takes about a second.
"""

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.log import events
from scheduler.auction.prices import KnownBids, Settings, solve_prices
from scheduler.types import NodeSpec, Task


def main() -> None:
    engine = Engine(ZoneRules(horizon_slots=4, money_quantum=1.0))
    node = NodeSpec(id="n", gpu_type="g", compute_capacity=10.0, memory_capacity=10.0, ask=5.0)
    engine.transition(events.NodeJoined(node=node))
    for number, bid in enumerate((100.0, 1.0)):
        task = Task(
            id=str(number),
            arrival_slot=0,
            deadline_slot=2,
            compute_demand=10.0,
            memory_demand=1.0,
            bid=bid,
            rates={"g": 6.0},
        )
        engine.quote(task, slot=0)
        engine.transition(events.BidArrived(task=task, slot=0))
        # A worker solves between the slots it must dispatch in time.
        known = KnownBids(slot=1, last_slot=3, day_start=0, today=[task], past_days=[])
        engine.transition(solve_prices(engine, known, seed=0, settings=Settings(iterations=2)))


if __name__ == "__main__":
    main()
