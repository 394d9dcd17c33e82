"""Answers of the express lane in the log: seats only where a task holds the cell."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.log import events
from scheduler.auction.log.codec import event_from_json, event_to_json
from scheduler.types import Cell
from tests.unit.scheduler.auction.builders import decide, enter, node, task, zone


@pytest.fixture
def engine() -> Engine:
    made = zone(node(), node("m"))
    assert decide(made, task("floor")).admitted
    return made


def answer(*seats: tuple[str, Cell]) -> events.ExpressAnswered:
    return events.ExpressAnswered("job", {"now_s": 1.5}, {"answer": "certified"}, seats)


def test_a_seat_in_a_cell_that_the_task_holds_is_entered_and_changes_nothing(engine):
    held = [one.cell for one in engine.reservations()]
    # Before the log's first bid the house's asks may rise yet.
    enter(engine, events.BidArrived(task("another"), 0))
    before = engine.snapshot()
    entry = engine.apply(answer(*(("floor", cell) for cell in held)))
    after = engine.snapshot()
    assert entry.position == engine.position
    assert {k: v for k, v in after.items() if k not in ("position", "head_hash")} == {
        k: v for k, v in before.items() if k not in ("position", "head_hash")
    }


@pytest.mark.parametrize(
    ("task_id", "cell"),
    [
        ("floor", Cell(5, "m")),
        ("floor", Cell(99, "n")),
        ("nobody", Cell(0, "n")),
    ],
)
def test_a_seat_that_nobody_bought_is_refused(engine, task_id, cell):
    before = engine.head_hash
    with pytest.raises(ValueError, match=f"task {task_id} does not hold slot"):
        engine.apply(answer((task_id, cell)))
    assert engine.head_hash == before


def test_a_seat_that_was_given_back_is_refused(engine):
    [first, *_] = [one.cell for one in engine.reservations()]
    engine.apply(events.CellsReleased("floor", (first,)))
    with pytest.raises(ValueError, match="does not hold"):
        engine.apply(answer(("floor", first)))


def test_an_answer_goes_to_json_and_back_exactly():
    event = answer(("floor", Cell(3, "n")))
    text = json.dumps(event_to_json(event))
    assert event_from_json(json.loads(text)) == event


def test_a_number_that_is_none_is_refused():
    engine = Engine(ZoneRules(horizon_slots=6))
    with pytest.raises(ValueError, match="question"):
        engine.apply(events.ExpressAnswered("job", {"now_s": float("nan")}, {}))


def test_a_plan_of_waiting_jobs_is_entered_only_in_cells_that_tasks_hold(engine):
    held = tuple(("floor", one.cell) for one in engine.reservations())
    planned = events.ExpressPlanned({"now_s": 1.0}, {"moved": []}, {"job": held})
    assert event_from_json(json.loads(json.dumps(event_to_json(planned)))) == planned
    engine.apply(planned)
    with pytest.raises(ValueError, match="task nobody does not hold slot"):
        engine.apply(replace(planned, moved={"job": (("nobody", held[0][1]),)}))


def test_an_answer_that_moves_others_goes_to_json_and_back_exactly():
    event = replace(answer(("floor", Cell(3, "n"))), moved={"other": (("floor", Cell(4, "n")),)})
    assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event
    assert "moved" not in event_to_json(answer())
