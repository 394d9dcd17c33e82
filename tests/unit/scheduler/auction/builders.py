"""Small zones, nodes and tasks with one line each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scheduler.auction import ChainEntry, Engine, ZoneRules
from scheduler.auction.log import events
from scheduler.auction.log.chain import seal
from scheduler.auction.prices.worths import show_outcome
from scheduler.types import Decision, NodeSpec, Task


def zone(*nodes: NodeSpec, **rules: Any) -> Engine:
    """Give an engine with nodes on sale, of 6 slots by default."""
    engine = Engine(ZoneRules(**{"horizon_slots": 6, **rules}))
    for node in nodes:
        engine.apply(events.NodeJoined(node))
    return engine


def node(name: str = "n", **changes: Any) -> NodeSpec:
    """Give a node of 10 samples per slot and 10 GB."""
    return NodeSpec(
        **{
            "id": name,
            "gpu_type": "g",
            "compute_capacity": 10.0,
            "memory_capacity": 10.0,
            **changes,
        }
    )


def task(name: str = "t", **changes: Any) -> Task:
    """Give a task of two slots of 4 samples with 2 GB, worth 100."""
    return Task(
        **{
            "id": name,
            "arrival_slot": 0,
            "deadline_slot": 5,
            "compute_demand": 8.0,
            "memory_demand": 2.0,
            "bid": 100.0,
            "rates": {"g": 4.0},
            **changes,
        }
    )


def list_outcomes(log: Iterable[ChainEntry]) -> list[Task]:
    """Give the decided bids of a log as solves read them."""
    return [
        show_outcome(entry.event.task, entry.outcome)
        for entry in log
        if isinstance(entry.event, events.BidArrived) and isinstance(entry.outcome, Decision)
    ]


def price(engine: Engine, compute_price: float, memory_price: float = 0.0) -> None:
    """Give every cell of an engine of 6 slots one price."""
    engine.apply(
        events.PricesSolved(
            first_slot=engine.horizon.first_slot,
            compute_price={n.id: (compute_price,) * 6 for n in engine.nodes},
            memory_price={n.id: (memory_price,) * 6 for n in engine.nodes},
        )
    )


def enter(engine: Engine, event: events.Event) -> list[ChainEntry]:
    """Apply an event as a zone's writer does: a bid is received before it is decided."""
    if not isinstance(event, events.BidArrived | events.BidPriced):
        return [engine.apply(event)]
    received = events.BidsReceived(((event.task.id, seal(event)),))
    return [engine.apply(received), engine.apply(event)]


def decide(engine: Engine, bid: Task, *, slot: int = 0) -> Decision:
    """Let an engine decide a bid."""
    outcome = engine.transition(events.BidArrived(bid, slot))
    assert isinstance(outcome, Decision)
    return outcome
