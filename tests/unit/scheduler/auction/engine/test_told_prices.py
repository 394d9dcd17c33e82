"""A bid without an amount is told its price, and nothing else happens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.audit.transcripts import verify_transcript, write_transcript_lines
from scheduler.auction.log import events
from scheduler.auction.log.chain import ChainEntry, seal
from scheduler.auction.log.outcomes import ToldPrice
from scheduler.types import Beat, Decision, Refusal
from tests.unit.scheduler.auction.builders import enter, node, task

RULES = ZoneRules(horizon_slots=6, beats_per_slot=2)
PRICED = events.BidPriced(task("first", bid=0.0), 0, Beat(0))


def open_zone() -> tuple[Engine, list[ChainEntry]]:
    engine = Engine(RULES)
    made = (events.SlotAdvanced(0), events.NodeJoined(node(ask=10.0)))
    return engine, [engine.apply(event) for event in made]


def test_the_price_is_what_a_bid_above_it_pays_and_nothing_is_reserved() -> None:
    engine, _ = open_zone()
    before = engine.snapshot()
    told = enter(engine, PRICED)[1].outcome
    assert isinstance(told, ToldPrice)
    assert told.price is not None
    changed = {name for name in before if before[name] != engine.snapshot()[name]}
    assert changed == {"position", "head_hash", "asks_may_rise"}
    for bid, admitted in ((told.price, False), (told.price + 1, True)):
        decided = enter(engine, events.BidArrived(replace(PRICED.task, bid=bid), 0))[1].outcome
        assert isinstance(decided, Decision)
        assert (decided.admitted, decided.schedule) == (admitted, told.schedule)
        assert decided.winning_price == told.price


def test_one_without_a_plan_is_told_why() -> None:
    engine, _ = open_zone()
    big = replace(PRICED, task=replace(PRICED.task, compute_demand=1e9))
    told = enter(engine, big)[1].outcome
    assert told == ToldPrice("first", None, None, None, Refusal.WINDOW)


@pytest.mark.parametrize(
    ("beat", "is_good"),
    [
        (Beat(0), True),
        (Beat(0, 1), True),
        (Beat(1), False),
        (Beat(-1, 1), False),
        (Beat(0, 2), False),
    ],
)
def test_the_price_is_of_the_beat_that_its_owner_saw_or_of_the_next(
    beat: Beat, *, is_good: bool
) -> None:
    engine, _ = open_zone()
    engine.apply(events.SlotAdvanced(0, 1))
    priced = replace(PRICED, beat=beat)
    if is_good:
        assert isinstance(enter(engine, priced)[1].outcome, ToldPrice)
    else:
        with pytest.raises(ValueError, match="the price of another beat"):
            enter(engine, priced)


def test_it_is_told_as_it_was_received_in_its_turn_and_without_an_amount() -> None:
    engine, _ = open_zone()
    with pytest.raises(ValueError, match="is decided out of turn"):
        engine.apply(PRICED)
    engine.apply(events.BidsReceived((("first", seal(PRICED)),)))
    with pytest.raises(ValueError, match="is not the one that was received"):
        engine.apply(replace(PRICED, task=replace(PRICED.task, compute_demand=1.0)))
    with pytest.raises(ValueError, match="must wait: bid first was received"):
        engine.apply(events.SlotAdvanced(1))
    with pytest.raises(ValueError, match="it has no bid"):
        engine.apply(replace(PRICED, task=replace(PRICED.task, bid=1.0)))
    engine.apply(PRICED)


def write_log() -> tuple[Engine, list[ChainEntry]]:
    engine, log = open_zone()
    for name, bid in (("taken", 1e9), ("left", 0.0)):
        own = replace(PRICED.task, id=name)
        log += enter(engine, replace(PRICED, task=own))
        log += enter(engine, events.BidArrived(replace(own, bid=bid), 0, "salt"))
    log += enter(engine, replace(PRICED, task=replace(PRICED.task, id="not answered")))
    return engine, log


@pytest.mark.parametrize("hidden", [False, True])
def test_its_log_is_verified_with_and_without_bids(*, hidden: bool) -> None:
    _, log = write_log()
    shows = (lambda _: False) if hidden else None
    found = verify_transcript(write_transcript_lines(log, rules=RULES, shows=shows))
    assert (found.ok, found.problem, found.entries) == (True, None, len(log))


@pytest.mark.parametrize("hidden", [False, True])
def test_another_price_than_follows_is_found(*, hidden: bool) -> None:
    _, log = write_log()
    at = next(n for n, entry in enumerate(log) if isinstance(entry.outcome, ToldPrice))
    outcome = log[at].outcome
    assert isinstance(outcome, ToldPrice)
    log[at] = replace(log[at], outcome=replace(outcome, price=1.0))
    shows = (lambda _: False) if hidden else None
    found = verify_transcript(write_transcript_lines(log[: at + 1], rules=RULES, shows=shows))
    assert (found.ok, found.position) == (False, log[at].position)


def test_a_retraced_log_comes_to_the_same_state() -> None:
    engine, log = write_log()
    retraced = Engine(RULES)
    for entry in log:
        retraced.retrace(entry.event, entry.outcome, entry_hash=entry.hash)
    assert retraced.snapshot() == engine.snapshot() == Engine.restore(engine.snapshot()).snapshot()
