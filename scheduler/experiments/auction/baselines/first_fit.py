"""EFT and NTM of section 5.1: the first to come gets the soonest schedule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.auction.prices.capacity import Supply, check_costs
from scheduler.auction.search.grid import Floats, Ints
from scheduler.experiments.auction.baselines.outcome import BaselineOutcome
from scheduler.experiments.auction.baselines.placement_kernel import place_soonest
from scheduler.types import NO_VENDOR, Cell, Schedule, Task


class SupplyRoom:
    """What is left, with the arrays the placement needs."""

    def __init__(self, supply: Supply) -> None:
        self.supply = supply
        self.compute: Floats = supply.compute.copy()
        self.memory: Floats = supply.memory.copy()
        self.load: Ints = np.zeros(supply.compute.shape, np.int64)

    def rates(self, task: Task) -> Floats:
        """Give the task's rate on every place."""
        return np.array([task.rates.get(name, 0.0) for name in self.supply.types], np.float64)

    def soonest(
        self, task: Task, *, ready_slot: int, alone: bool = False
    ) -> tuple[Ints, Ints] | None:
        """Give rows and places of the schedule that ends soonest, if one fits."""
        first = max(task.arrival_slot, ready_slot, self.supply.first_slot) - self.supply.first_slot
        last = min(task.deadline_slot, self.supply.last_slot) - self.supply.first_slot
        if first > last:
            return None
        rows = np.empty(last - first + 1, np.int64)
        places = np.empty(last - first + 1, np.int64)
        count = place_soonest(
            self.compute, self.memory, self.load, self.rates(task), task.memory_demand,
            task.compute_demand, first, last, alone, rows, places,
        )  # fmt: skip
        return (rows[:count], places[:count]) if count else None

    def cost(self, task: Task, places: Ints) -> float:
        """Give the operational cost of cells on these places."""
        return float(np.sum(self.rates(task)[places] * self.supply.ask[places]))

    def take(self, task: Task, rows: Ints, places: Ints, vendor: int) -> Schedule:
        """Reserve cells."""
        self.compute[rows, places] -= self.rates(task)[places]
        self.memory[rows, places] -= task.memory_demand
        self.load[rows, places] += 1
        first = self.supply.first_slot
        cells = zip(rows.tolist(), places.tolist(), strict=True)
        return Schedule(
            cells=tuple(Cell(slot=first + row, node=str(k)) for row, k in cells), vendor=vendor
        )


def earliest_finish(tasks: Sequence[Task], supply: Supply) -> BaselineOutcome:
    """Serve tasks in order of arrival, each so that it ends soonest.

    The vendor with the least delay cleans. The paper does not say whether a task
    worth less than its vendor and cells is served; here it is not, which favours
    the baseline.
    """
    room = SupplyRoom(supply)
    vendors = [
        min(range(len(t.vendors)), key=lambda n: (t.vendors[n].delay_slots, t.vendors[n].price))
        if t.vendors
        else NO_VENDOR
        for t in tasks
    ]
    return _serve(tasks, room, vendors, alone=False)


def no_merging(tasks: Sequence[Task], supply: Supply, *, seed: int) -> BaselineOutcome:
    """As EFT, with a random vendor and one task per node and slot."""
    rng = np.random.default_rng(seed)
    room = SupplyRoom(supply)
    return _serve(tasks, room, random_vendors(tasks, rng), alone=True)


def random_vendors(tasks: Sequence[Task], rng: np.random.Generator) -> list[int]:
    """Draw one vendor for each task that needs one."""
    return [int(rng.integers(len(t.vendors))) if t.vendors else NO_VENDOR for t in tasks]


def _serve(
    tasks: Sequence[Task], room: SupplyRoom, vendors: Sequence[int], *, alone: bool
) -> BaselineOutcome:
    check_costs(tasks)
    welfare = 0.0
    served: dict[str, Schedule] = {}
    for task, vendor in zip(tasks, vendors, strict=True):
        offer = task.vendors[vendor] if task.vendors else None
        ready = task.arrival_slot + (offer.delay_slots if offer else 0)
        found = room.soonest(task, ready_slot=ready, alone=alone)
        if found is None:
            continue
        gain = task.bid - (offer.price if offer else 0.0) - room.cost(task, found[1])
        if gain > 0:
            served[task.id] = room.take(task, *found, vendor)
            welfare += gain
    return BaselineOutcome(welfare=welfare, served=served)
