"""The per-task search: the cheapest schedules of one task at given prices.

Solves problem (12) of the paper exactly, for one deadline or for all of them,
over all labour vendors at once. Departures from the paper's Algorithm 2, each
needed for exactness: slot a + h is usable (line 9 starts one late), maxima of
prices are not carried in one label per amount of work (eq. 13), and work is not
rounded to a grid of samples.

Work is counted in units of 2**-41 of (the power of two above) the task's fastest
rate, so that sums do not depend on their order. Rates are rounded to the nearest
unit; the work asked for may fall short by one unit per slot on sale, which is
below a hundred-millionth of one slot's samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from scheduler.auction.grid import TOLERANCE, Floats, Grid, Ints
from scheduler.auction.kernels import (
    earliest_below,
    gather_cells,
    solve_curve,
    solve_deadline,
)
from scheduler.types import NO_VENDOR, Cell, PriceParts, Refusal, Schedule, Task

_UNIT_BITS = 41
_NEVER = 1 << 61

#: What ``gather_cells`` returns.
Listed = tuple[Ints, Ints, Ints, Floats, Floats, Floats]
#: What every solve starts with: the listed cells, rates, work, memory, vendors.
Arguments = tuple[Ints, Ints, Floats, Floats, Floats, Floats, Ints, int, float, Floats]


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule, its cells as array indices, and what it costs."""

    schedule: Schedule
    parts: PriceParts
    rows: Ints
    columns: Ints
    #: s_ik of each cell.
    rate: Floats

    @property
    def price(self) -> float:
        """Give the price before rounding to whole units of money."""
        return self.parts.total


class Search:
    """One task laid out over a grid, ready to be searched.

    Parameters
    ----------
    grid : Grid
        Not changed; must not change while the search is in use.
    task : Task
    from_slot : int
        First slot the task may use, besides its own arrival.
    additive : bool
        Form of the prices.
    residual : bool
        Only cells with room are used.
    """

    def __init__(
        self, *, grid: Grid, task: Task, from_slot: int, additive: bool, residual: bool
    ) -> None:
        self._grid = grid
        self._task = task
        self._additive = additive
        self._residual = residual
        self._begin = max(task.arrival_slot, from_slot, grid.first_slot)
        self._last = grid.first_slot + grid.slots - 1
        by_type = np.array([task.rates.get(name, 0.0) for name in grid.types], np.float64)
        self._units(by_type)
        self.node_rate: Floats = by_type[grid.node_type] if grid.types else np.empty(0, np.float64)
        slots = max(self._last - self._begin + 1, 0)
        self._entry = np.full(slots, np.inf)
        self._entry_vendor = np.full(slots, NO_VENDOR, np.int64)
        if task.vendors:
            for index, vendor in enumerate(task.vendors):
                at = max(task.arrival_slot + vendor.delay_slots - self._begin, 0)
                if at < slots and vendor.price < self._entry[at]:
                    self._entry[at] = vendor.price
                    self._entry_vendor[at] = index
        elif slots:
            self._entry[0] = 0.0
        self._cost = self._costs()
        self._listed: Listed | None = None

    def _units(self, by_type: Floats) -> None:
        task = self._task
        usable = sorted({rate for rate in by_type.tolist() if 0 < rate < math.inf})
        top = usable[-1] if usable else 1.0
        unit = math.ldexp(1.0, math.frexp(top)[1] - _UNIT_BITS)
        units = [round(rate / unit) for rate in usable]
        classes = [(rate, n) for rate, n in zip(usable, units, strict=True) if n > 0]
        self._class_rate: Floats = np.array([rate for rate, _ in classes], np.float64)
        self._class_units: Ints = np.array([n for _, n in classes], np.int64)
        place = {rate: i for i, (rate, _) in enumerate(classes)}
        class_by_type = np.array([place.get(r, -1) for r in by_type.tolist()], np.int64)
        self._node_class: Ints = (
            class_by_type[self._grid.node_type] if len(by_type) else np.empty(0, np.int64)
        )
        exact = task.compute_demand / unit
        slack = self._grid.slots
        self._need = _NEVER if not exact < _NEVER else max(1, math.ceil(exact) - slack)

    def _costs(self) -> Floats:
        grid, task = self._grid, self._task
        by_ask = grid.ask_per_sample * self.node_rate
        if task.operational_costs is None:
            return by_ask.reshape(1, -1)
        slots = len(self._entry)
        cost = np.repeat(by_ask.reshape(1, -1), max(slots, 2), axis=0)
        offset = self._begin - task.arrival_slot
        for k, node in enumerate(grid.nodes):
            row = task.operational_costs.get(node.id)
            if row is not None:
                own = np.array(row[offset : offset + slots], np.float64)
                cost[: len(own), k] = own
        return cost

    def _cells(self, last_slot: int) -> Listed:
        """Gather at least up to a slot; rows of the cost matrix count from ``_begin``.

        Lists are in slot order, so a longer one serves any earlier deadline.
        """
        if self._listed is not None and len(self._listed[0]) > last_slot - self._begin + 1:
            return self._listed
        grid = self._grid
        first = grid.row(self._begin)
        last = grid.row(last_slot)
        if self._residual:
            need_compute = self.node_rate - TOLERANCE * grid.compute_capacity
            need_memory = self._task.memory_demand - TOLERANCE * np.abs(grid.memory_capacity)
        else:
            need_compute = np.full(len(grid.nodes), -1e300)
            need_memory = need_compute
        self._listed = gather_cells(
            grid.compute_price[first : last + 1],
            grid.memory_price[first : last + 1],
            grid.compute_free[first : last + 1],
            grid.memory_free[first : last + 1],
            self._cost,
            self.node_rate,
            self._node_class,
            need_compute,
            need_memory,
            len(self._class_rate),
            self._task.memory_demand,
            0,
            last - first,
            self._additive,
            grid.waste,
            grid.waste_unit,
            grid.node_type,
        )
        return self._listed

    def at_deadline(self, deadline: int) -> Plan | None:
        """Give the cheapest plan that ends by a deadline, if there is one."""
        deadline = min(deadline, self._last)
        if deadline < self._begin or not len(self._class_rate):
            return None
        listed = self._cells(deadline)
        cells = np.empty(deadline - self._begin + 1, np.int64)
        _, count, door, _ = solve_deadline(
            *self._arguments(listed), deadline - self._begin, math.inf, -math.inf, cells
        )
        return self._plan_of(listed, cells[:count], door) if count else None

    def by_deadline(self, *, first: int, last: int) -> dict[int, Plan]:
        """Give the cheapest plan for each deadline at which it gets cheaper.

        Parameters
        ----------
        first, last : int
            Deadline slots, inclusive; slots not on sale are left out.

        Returns
        -------
        dict of int to Plan
            First deadline of every tread of the price curve, in order. Empty
            when no deadline in the range has a plan.
        """
        first, last = max(first, self._begin), min(last, self._last)
        if last < first or not len(self._class_rate):
            return {}
        listed = self._cells(last)
        _, _, count, door, cells = solve_curve(
            *self._arguments(listed), first - self._begin, last - self._begin
        )
        treads: dict[int, Plan] = {}
        least = math.inf
        before: Ints | None = None
        for i in np.flatnonzero(count).tolist():
            picked = cells[i, : count[i]]
            if before is not None and np.array_equal(picked, before):
                continue
            before = picked
            plan = self._plan_of(listed, picked, int(door[i]))
            if plan.price < least * (1 - 1e-12):
                least = plan.price
                treads[first + i] = plan
        return treads

    def price_curve(self, *, first: int, last: int) -> list[tuple[int, float, int]]:
        """Give ``(deadline, price, finish slot)`` where the price falls, in order.

        The prices of ``by_deadline`` (up to rounding in the last digits) without
        its plans.
        """
        first, last = max(first, self._begin), min(last, self._last)
        if last < first or not len(self._class_rate):
            return []
        price, finish, _, _, _ = solve_curve(
            *self._arguments(self._cells(last)), first - self._begin, last - self._begin
        )
        treads: list[tuple[int, float, int]] = []
        least = math.inf
        for i, (now, slot) in enumerate(zip(price.tolist(), finish.tolist(), strict=True)):
            if now < least * (1 - 1e-12):
                least = now
                treads.append((first + i, now, self._begin + slot))
        return treads

    def earliest_below(self, *, first: int, last: int, ceiling: float) -> int | None:
        """Give the first deadline of a range with a plan cheaper than a ceiling."""
        first, last = max(first, self._begin), min(last, self._last)
        if last < first or not len(self._class_rate):
            return None
        at = earliest_below(
            *self._arguments(self._cells(last)),
            first - self._begin,
            last - self._begin,
            ceiling,
        )
        return None if at < 0 else self._begin + at

    def _arguments(self, listed: Listed) -> Arguments:
        starts, _, cls, lam, phi, own = listed
        return (
            starts,
            cls,
            lam,
            phi,
            own,
            self._class_rate,
            self._class_units,
            self._need,
            self._task.memory_demand,
            self._entry,
        )

    def _plan_of(self, listed: Listed, picked: Ints, door: int) -> Plan:
        starts, node = listed[0], listed[1]
        return self._plan(
            rows=np.searchsorted(starts, picked, side="right") - 1 + self._grid.row(self._begin),
            columns=node[picked],
            vendor=int(self._entry_vendor[door]),
        )

    def most_work(self) -> Plan | None:
        """Give the fastest cell of every slot on sale, cheapest first among equals.

        For a job whose work does not fit the horizon any more; vendors are not
        looked at.
        """
        if self._begin > self._last or not len(self._class_rate):
            return None
        starts, node, cls, lam, phi, own = self._cells(self._last)
        picked: list[int] = []
        rows: list[int] = []
        for i in range(len(starts) - 1):
            here = range(int(starts[i]), int(starts[i + 1]))
            if here:
                picked.append(min(here, key=lambda j: (-cls[j], own[j], lam[j], phi[j], node[j])))
                rows.append(i + self._grid.row(self._begin))
        if not picked:
            return None
        return self._plan(
            rows=np.array(rows, np.int64), columns=node[np.array(picked)], vendor=NO_VENDOR
        )

    def _plan(self, *, rows: Ints, columns: Ints, vendor: int) -> Plan:
        grid, task = self._grid, self._task
        rate = self.node_rate[columns]
        by_slot = self._cost.shape[0] > 1
        cost = self._cost[rows - grid.row(self._begin) if by_slot else 0, columns]
        lam = grid.compute_price[rows, columns]
        phi = grid.memory_price[rows, columns]
        if self._additive:
            compute = math.fsum((rate * lam).tolist())
            memory = math.fsum((task.memory_demand * phi).tolist())
        else:
            compute = max(lam.tolist()) * math.fsum(rate.tolist())
            memory = max(phi.tolist()) * (task.memory_demand * len(phi))
        parts = PriceParts(
            vendor=0.0 if vendor == NO_VENDOR else float(task.vendors[vendor].price),
            operational=math.fsum(cost.tolist()),
            compute=compute,
            memory=memory,
        )
        first = grid.first_slot
        cells = tuple(
            Cell(slot=first + row, node=grid.nodes[int(k)].id)
            for row, k in zip(rows.tolist(), columns.tolist(), strict=True)
        )
        return Plan(
            schedule=Schedule(cells=cells, vendor=vendor),
            parts=parts,
            rows=rows,
            columns=columns,
            rate=rate,
        )

    def refusal(self) -> Refusal:
        """Say why no plan exists; call only when none does."""
        grid, task = self._grid, self._task
        if not grid.nodes:
            return Refusal.CAPACITY
        runs = self._node_class >= 0
        holds = grid.memory_capacity >= task.memory_demand - TOLERANCE * np.abs(
            grid.memory_capacity
        )
        strong = grid.compute_capacity * (1 + TOLERANCE) >= self.node_rate
        able = runs & holds & strong
        if not bool(np.any(able)):
            return Refusal.MEMORY
        deadline = min(task.deadline_slot, self._last)
        starts = [i for i, price in enumerate(self._entry.tolist()) if price < math.inf]
        if not starts or deadline < self._begin + starts[0]:
            return Refusal.WINDOW
        rows = slice(grid.row(self._begin + starts[0]), grid.row(deadline) + 1)
        units = np.where(able, self._class_units[self._node_class], 0)
        on_sale = grid.compute_free[rows] > -np.inf
        most = int(np.sum(np.max(np.where(on_sale, units, 0), axis=1)))
        return Refusal.WINDOW if most < self._need else Refusal.CAPACITY
