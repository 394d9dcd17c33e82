"""Small zones, nodes and tasks with one line each."""

from __future__ import annotations

from typing import Any

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.log import events
from scheduler.experiments.auction.max_form.engine import make_engine
from scheduler.experiments.auction.max_form.policies import max_form_rules
from scheduler.types import Decision, Node, Task


def zone(*nodes: Node, **rules: Any) -> Engine:
    """Give an engine with nodes on sale, of 6 slots by default.

    Its prices rise with every sale, so that a test needs no solve: the retired max form.
    """
    given = {name: rules.pop(name) for name in tuple(rules) if name in max_form_rules()}
    engine = make_engine(
        ZoneRules(
            **{"policy": "residual", "horizon_slots": 6, **rules}, retired=max_form_rules(**given)
        )
    )
    for node in nodes:
        engine.apply(events.NodeJoined(node))
    return engine


def node(name: str = "n", **changes: Any) -> Node:
    """Give a node of 10 samples per slot and 10 GB."""
    return Node(
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


def decide(engine: Engine, bid: Task, *, slot: int = 0) -> Decision:
    """Let an engine decide a bid."""
    outcome = engine.apply(events.BidArrived(bid, slot)).outcome
    assert isinstance(outcome, Decision)
    return outcome
