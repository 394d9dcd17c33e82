"""Asks of the house's own nodes rise as a day begins and at no other time."""

from __future__ import annotations

import json

import pytest

from scheduler.auction import Engine
from scheduler.auction.log import events
from scheduler.types import NodeSpec
from tests.unit.scheduler.auction.builders import enter, node, task, zone

DAY = 10


def receive(engine: Engine, name: str) -> None:
    """Decide a bid: what comes later is no part of the day's begin."""
    slot = engine.horizon.first_slot
    enter(engine, events.BidArrived(task(name, arrival_slot=slot, deadline_slot=slot), slot))


def own(name: str = "a", ask: float = 2.0, **changes: object) -> NodeSpec:
    return node(name, ask=ask, is_own=True, **changes)


def begun(*nodes: NodeSpec) -> Engine:
    """A zone on a day of which something but the day's own entries is in the log."""
    engine = zone(*nodes, day_slots=DAY)
    engine.apply(events.SlotAdvanced(0))
    receive(engine, "first")
    return engine


def advance(engine: Engine, *slots: int, closes: bool = True) -> None:
    """Go on to slots; a bid comes after each."""
    for slot in slots:
        engine.apply(events.SlotAdvanced(slot))
        if closes:
            receive(engine, f"at-{slot}")


def refused(engine: Engine, event: events.Event) -> None:
    """Whether an event is refused and leaves no trace."""
    before = engine.snapshot()
    with pytest.raises(ValueError, match=r"the house's own ask of node . rose within a day"):
        engine.apply(event)
    assert engine.snapshot() == before


def test_an_own_ask_falls_at_once_and_rises_with_the_first_beat_of_a_day():
    engine = begun(own(ask=2.0))
    refused(engine, events.NodeChanged(own(ask=2.5)))
    engine.apply(events.NodeChanged(own(ask=1.0)))
    refused(engine, events.NodeChanged(own(ask=2.0)))
    advance(engine, DAY - 1)
    refused(engine, events.NodeChanged(own(ask=2.0)))
    advance(engine, DAY, closes=False)
    engine.apply(events.NodeChanged(own(ask=3.0)))
    assert engine.nodes[0].ask == 3.0
    receive(engine, "later")
    refused(engine, events.NodeChanged(own(ask=3.5)))


@pytest.mark.parametrize("later", [events.SlotAdvanced(0, 1), events.SlotAdvanced(DAY - 1)])
def test_an_own_ask_rises_no_more_after_the_next_beat_of_a_day_without_bids(later):
    """Else it could rise when the day's first bid is seen, before its receipt."""
    engine = zone(own(ask=2.0), day_slots=DAY)
    engine.apply(events.SlotAdvanced(0))
    engine.apply(events.NodeChanged(own(ask=2.5)))
    engine.apply(later)
    refused(engine, events.NodeChanged(own(ask=3.0)))
    engine.apply(events.SlotAdvanced(DAY))
    engine.apply(events.NodeChanged(own(ask=3.0)))
    engine.apply(events.SlotAdvanced(DAY, 1))
    refused(engine, events.NodeChanged(own(ask=3.5)))


def test_another_providers_ask_moves_at_once():
    engine = begun(node("a", ask=2.0), own("b", ask=1.0))
    engine.apply(events.NodeChanged(node("a", ask=9.0)))
    engine.apply(events.NodeJoined(node("c", ask=9.0)))
    assert [each.ask for each in engine.nodes] == [9.0, 1.0, 9.0]


@pytest.mark.parametrize("left_from", [0, 2])
def test_an_own_node_that_left_comes_back_with_its_ask_at_most(left_from):
    engine = begun(own(ask=2.0))
    engine.apply(events.NodeLeft("a", from_slot=left_from))
    advance(engine, 3)
    refused(engine, events.NodeJoined(own(ask=2.5)))
    # Nor does it under another owner's name.
    refused(engine, events.NodeJoined(node("a", ask=2.5)))
    engine.apply(events.NodeJoined(own(ask=2.0)))
    assert [each.ask for each in engine.nodes] == [2.0]


def test_a_new_own_node_asks_what_it_likes_and_keeps_to_it():
    engine = begun(own("a", ask=2.0))
    engine.apply(events.NodeJoined(own("d", ask=9.0)))
    engine.apply(events.NodeLeft("d", from_slot=0))
    refused(engine, events.NodeJoined(own("d", ask=9.5)))
    assert engine.find_most_ask(own("d")) == 9.0
    assert engine.find_most_ask(own("e")) == float("inf")


def test_a_node_that_loses_capacity_asks_less_for_all_of_it():
    engine = begun(own(ask=2.0))
    refused(engine, events.NodeChanged(own(ask=2.0, compute_capacity=5.0)))
    engine.apply(events.NodeChanged(own(ask=1.0, compute_capacity=5.0)))
    engine.apply(events.NodeChanged(own(ask=2.0, compute_capacity=10.0)))


def test_a_node_that_becomes_the_houses_own_keeps_its_ask():
    engine = begun(own("a", ask=2.0), node("b", ask=7.0))
    engine.apply(events.NodeChanged(own("b", ask=7.0)))
    refused(engine, events.NodeChanged(own("b", ask=8.0)))


def test_a_node_that_left_is_free_after_a_whole_day_without_it():
    engine = begun(own(ask=2.0))
    advance(engine, DAY - 1)
    engine.apply(events.NodeLeft("a", from_slot=DAY - 1))
    advance(engine, DAY, 2 * DAY - 1)
    refused(engine, events.NodeJoined(own(ask=2.5)))
    advance(engine, 2 * DAY)
    engine.apply(events.NodeJoined(own(ask=9.0)))
    assert [each.ask for each in engine.nodes] == [9.0]


def test_a_snapshot_holds_what_nodes_that_left_asked():
    engine = begun(own(ask=2.0))
    engine.apply(events.NodeLeft("a", from_slot=0))
    again = Engine.restore(json.loads(json.dumps(engine.snapshot())))
    assert again.snapshot() == engine.snapshot()
    refused(again, events.NodeJoined(own(ask=2.5)))


def test_a_log_is_followed_and_restored_to_the_same_asks():
    engine, followed, restored = (zone(own(ask=2.0), day_slots=DAY) for _ in range(3))
    bid = events.BidArrived(task(), 0)
    for event in (events.SlotAdvanced(0), events.NodeLeft("a", from_slot=0)):
        entry = engine.apply(event)
        followed.follow(event, entry_hash=entry.hash)
        restored.retrace(event, entry.outcome, entry_hash=entry.hash)
    for each in (engine, followed, restored):
        assert each.find_most_ask(own()) == float("inf")
    for entry in enter(engine, bid):
        followed.follow(entry.event, entry_hash=entry.hash)
        restored.retrace(entry.event, entry.outcome, entry_hash=entry.hash)
    for each in (engine, followed, restored):
        assert each.find_most_ask(own()) == 2.0
