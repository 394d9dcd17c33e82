"""Titan as section 5.1 adapts it: one integer program per slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from scheduler.auction.prices.capacity import Supply, check_costs, pool_places
from scheduler.auction.search.grid import Ints
from scheduler.experiments.auction.baselines.first_fit import SupplyRoom, random_vendors
from scheduler.experiments.auction.baselines.outcome import BaselineOutcome
from scheduler.experiments.auction.bounds.offline_program import offline_optimum
from scheduler.types import Schedule, Task


def titan(
    tasks: Sequence[Task], supply: Supply, *, seed: int, time_limit_s: float
) -> BaselineOutcome:
    """Solve (4) at each slot for the tasks that arrived in it.

    Vendors are random, as in the paper. The program pools nodes of one type; its
    schedules are then put on single nodes, fullest first, dearest task first.
    When HiGHS has nothing in time, or a schedule does not fit single nodes, the
    task gets the soonest schedule that does.

    Parameters
    ----------
    tasks : sequence of Task
        In order of arrival.
    supply : Supply
    seed : int
        Of the vendors.
    time_limit_s : float
        For each slot's program; the best solution so far is taken.
    """
    check_costs(tasks)
    rng = np.random.default_rng(seed)
    room = SupplyRoom(supply)
    welfare = 0.0
    served: dict[str, Schedule] = {}
    for slot, batch in groupby(tasks, key=lambda t: t.arrival_slot):
        here = list(batch)
        vendors = random_vendors(here, rng)
        fixed = [
            replace(task, vendors=(task.vendors[n],) if task.vendors else ())
            for task, n in zip(here, vendors, strict=True)
        ]
        now = replace(
            supply,
            compute=np.where(_useful(room, fixed), room.compute, 0.0),
            memory=room.memory,
        )
        pools, pool_of = pool_places(now)
        found = offline_optimum(fixed, pools, time_limit_s=time_limit_s, relative_gap=0.005)
        wanted = found.chosen
        # Without any solution in time, first come, first served.
        everyone = range(len(fixed))
        timed_out = not wanted and not found.optimal
        order = sorted(everyone if timed_out else wanted, key=lambda i: (-fixed[i].bid, i))
        for i in order:
            task = fixed[i]
            cells = wanted[i][1] if wanted else ()
            placed = _placed(room, task, cells, pool_of) if cells else None
            delay = task.vendors[0].delay_slots if task.vendors else 0
            placed = placed or room.soonest(task, ready_slot=slot + delay)
            if placed is None:
                continue
            price = task.vendors[0].price if task.vendors else 0.0
            gain = task.bid - price - room.cost(task, placed[1])
            if gain > 0:
                served[task.id] = room.take(task, *placed, vendors[i])
                welfare += gain
    return BaselineOutcome(welfare=welfare, served=served)


def _useful(room: SupplyRoom, tasks: Sequence[Task]) -> np.ndarray:
    """Tell which cells have room for the least of the tasks."""
    rates = np.array([room.rates(task) for task in tasks])
    return room.compute >= rates.min(axis=0) * (1 - 1e-9)


def _placed(
    room: SupplyRoom, task: Task, cells: Sequence[tuple[int, int]], pool_of: Ints
) -> tuple[Ints, Ints] | None:
    """Put a schedule on pools onto nodes, each cell on the fullest with room."""
    rates = room.rates(task)
    rows: list[int] = []
    places: list[int] = []
    for slot, pool in cells:
        row = slot - room.supply.first_slot
        fits = (
            (pool_of == pool)
            & (room.compute[row] >= rates * (1 - 1e-9))
            & (room.memory[row] >= task.memory_demand * (1 - 1e-9))
        )
        if not bool(fits.any()):
            return None
        rows.append(row)
        places.append(int(np.argmin(np.where(fits, room.compute[row], np.inf))))
    return np.array(rows, np.int64), np.array(places, np.int64)
