"""Between a receipt and its decision nothing may happen that moves a price."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.audit.transcripts import verify_transcript, write_transcript_lines
from scheduler.auction.log import events
from scheduler.auction.log.chain import ChainEntry, seal
from scheduler.types import Cell
from tests.unit.scheduler.auction.builders import node, task

RULES = ZoneRules(horizon_slots=6)


def arrival(name: str, bid: float = 100.0) -> events.BidArrived:
    return events.BidArrived(task(name, bid=bid), 0, f"salt of {name}")


def receipts(*arrivals: events.BidArrived) -> events.BidsReceived:
    return events.BidsReceived(tuple((of.task.id, seal(of)) for of in arrivals))


FIRST, SECOND = arrival("first"), arrival("second", 7.0)


def opened() -> Engine:
    """A zone that has received two bids and decided neither."""
    engine = Engine(RULES)
    engine.apply(events.NodeJoined(node(ask=10.0)))
    engine.apply(receipts(FIRST, SECOND))
    return engine


MEANWHILE = [
    events.SlotAdvanced(1),
    events.NodeJoined(node("other")),
    events.NodeChanged(node(ask=99.0)),
    events.NodeLeft("n", 0),
    events.CellsReleased("t", (Cell(0, "n"),)),
    events.TaskReplanned(task("t"), 0, "s"),
    events.PricesSolved(0, {"n": (49.0,) * 6}, {"n": (0.0,) * 6}),
    events.RulesChanged(replace(RULES, settings={"growth": 1.0})),
]


@pytest.mark.parametrize("event", MEANWHILE, ids=lambda event: type(event).__name__)
def test_nothing_that_could_move_a_price_comes_between_a_receipt_and_its_decision(
    event: events.Event,
) -> None:
    engine = opened()
    before = engine.snapshot()
    with pytest.raises(ValueError, match="must wait: bid first was received and is not decided"):
        engine.apply(event)
    assert engine.snapshot() == before
    engine.apply(FIRST)
    engine.apply(SECOND)
    engine.apply(event)


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (SECOND, "bid second is decided out of turn: first was received first"),
        (arrival("third"), "bid third is decided out of turn: first was received first"),
        (arrival("first", 100.1), "bid first is not the one that was received"),
        (replace(FIRST, salt="another"), "bid first is not the one that was received"),
        (replace(FIRST, slot=1), "bid first is not the one that was received"),
        (receipts(FIRST), "each received once"),
        (receipts(arrival("a"), arrival("a")), "each received once"),
        (events.BidsReceived(()), "for one bid or more"),
        (events.ReceiptsVoided((), "late"), "only open receipts can be voided"),
        (events.ReceiptsVoided(("third",), "late"), "only open receipts can be voided"),
    ],
)
def test_a_bid_is_decided_as_it_was_received_and_in_its_turn(
    event: events.Event, problem: str
) -> None:
    engine = opened()
    before = engine.snapshot()
    with pytest.raises(ValueError, match=problem):
        engine.apply(event)
    assert engine.snapshot() == before


def test_a_bid_that_was_not_received_is_not_decided() -> None:
    engine = Engine(RULES)
    with pytest.raises(ValueError, match="out of turn: none was received first"):
        engine.apply(FIRST)


def test_a_voided_receipt_gives_the_next_its_turn_and_may_be_given_again() -> None:
    engine = opened()
    engine.apply(events.ReceiptsVoided(("first",), "late"))
    assert engine.open_receipts == ("second",)
    engine.apply(SECOND)
    engine.apply(receipts(FIRST))
    engine.apply(FIRST)
    assert engine.open_receipts == ()


def test_open_receipts_survive_a_restart_in_their_order() -> None:
    engine = opened()
    back = Engine.restore(engine.snapshot())
    assert back.open_receipts == ("first", "second")
    assert back.apply(FIRST) == engine.apply(FIRST)
    assert back.snapshot() == engine.snapshot()
    assert "receipts" not in Engine(RULES).snapshot()


def test_events_can_be_tried_on_a_replica_whatever_was_received() -> None:
    engine = opened()
    before = engine.snapshot()
    trial = engine.replica()
    trial.transition(events.SlotAdvanced(1))
    assert (trial.horizon.first_slot, engine.snapshot()) == (1, before)


def whole_log() -> list[ChainEntry]:
    engine = Engine(RULES)
    script = [
        events.NodeJoined(node(ask=10.0)),
        receipts(FIRST, SECOND),
        FIRST,
        SECOND,
        events.SlotAdvanced(1),
        events.TaskReplanned(replace(FIRST.task, arrival_slot=1), 1, "salt"),
    ]
    return [engine.apply(event) for event in script]


@pytest.mark.parametrize("shown", [True, False])
def test_a_log_with_receipts_verifies_with_bids_and_without(shown: bool) -> None:
    shows = None if shown else (lambda _: False)
    lines = list(write_transcript_lines(whole_log(), rules=RULES, shows=shows))
    assert verify_transcript(lines).ok
    if not shown:
        text = "\n".join(lines)
        assert not any(
            name in text for name in ("raised", "winning_deadline", "surplus", "salt", '"bid":')
        )


def test_following_a_log_settles_its_receipts_too() -> None:
    engine, traced = opened(), opened()
    for event in (FIRST, SECOND):
        entry = engine.apply(event)
        traced.retrace(event, entry.outcome, entry_hash=entry.hash)
    assert traced.snapshot() == engine.snapshot()
