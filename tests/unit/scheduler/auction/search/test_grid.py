"""Room of cells that are sold and given back."""

from __future__ import annotations

from scheduler.auction.log import events
from scheduler.types import Cell
from tests.unit.scheduler.auction.builders import decide, node, task, zone

RATES = {"first": 0.2, "second": 0.1, "third": 0.3}


def test_a_cell_that_nothing_holds_any_more_has_exactly_the_room_of_an_unsold_one() -> None:
    rest = 0.9
    for rate in RATES.values():
        rest -= rate
    # Added up again, floats do not come to what was there.
    assert rest + 0.2 + 0.1 + 0.3 != 0.9
    engine = zone(node(compute_capacity=0.9, memory_capacity=0.9))
    unsold = engine.snapshot()["arrays"]
    for name, rate in RATES.items():
        needs = {"compute_demand": rate, "rates": {"g": rate}, "memory_demand": rate}
        assert decide(engine, task(name, deadline_slot=0, **needs)).admitted
    for name in RATES:
        engine.apply(events.CellsReleased(name, (Cell(0, "n"),)))
    assert engine.snapshot()["arrays"] == unsold
