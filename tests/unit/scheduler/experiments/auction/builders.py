"""Small days that fill their nodes."""

from __future__ import annotations

from scheduler.experiments.auction.bounds import Supply, make_capacity
from scheduler.experiments.auction.scenario import Scenario
from scheduler.types import Task

#: Two nodes that far too many want.
CROWDED = Scenario(
    "crowded",
    slots=16,
    nodes=2,
    bids_per_slot=1.5,
    samples=(5_000, 10_000),
    most_epochs=2,
    a100_capacity=8_000.0,
    a40_capacity=4_000.0,
    task_gb=(20.0, 25.0, 30.0),
)


def crowded(seed: int) -> tuple[list[Task], Supply]:
    """Give a day's tasks and all its cells."""
    return CROWDED.day(seed), make_capacity(
        CROWDED.fleet(), base_memory=CROWDED.base_memory_gb, first_slot=0, slots=CROWDED.slots
    )
