"""The per-task search: the cheapest schedules of one task at given prices.

Solves problem (12) of the paper exactly, for one deadline or for all of them,
over all labour vendors at once. Departures from the paper's Algorithm 2, each
needed for exactness: slot a + h is usable (line 9 starts one late), maxima of
prices are not carried in one label per amount of work (eq. 13), and work is not
rounded to a grid of samples. A vendor with a limit begins when it has room, and so
may be ready later than a + h (constraint 4c; see ``vendor_book``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from scheduler.auction.search.grid import Floats, Grid, Ints
from scheduler.auction.search.kernels.cells import Cells, OfferedCells, TaskNeed, gather_cells
from scheduler.auction.search.kernels.deadlines import (
    find_earliest_below,
    solve_curve,
    solve_deadline,
    solve_offer,
    solve_with_hint,
    trace_cover_curve,
)
from scheduler.auction.search.rates import Rates, find_rates
from scheduler.auction.search.task_plan import TaskPlan
from scheduler.types import NO_VENDOR, Cell, LaborVendor, PriceParts, Refusal, Schedule, Task

#: Above this many counts of cells and slots a curve is found tread by tread instead of
#: in one pass over them.
_MANY = 30_000_000
#: Share of a price by which plans must differ to be distinguished for certain; what
#: rounding and the tie-break by slot come to is a hundredth of it.
MARGIN = 1e-6
#: Deadlines looked at first for one at which a bid would win.
_NEAR = 12


class Search:
    """One task laid out over a grid, ready to be searched.

    Parameters
    ----------
    grid : Grid
        Not changed; must not change while the search is in use.
    task : Task
    from_slot : int
        First slot the task may use, besides its own arrival.
    """

    def __init__(self, *, grid: Grid, task: Task, from_slot: int) -> None:
        self._grid = grid
        self._task = task
        self._begin = max(task.arrival_slot, from_slot, grid.first_slot)
        self._last = grid.first_slot + grid.slots - 1
        self._rates: Rates = find_rates(grid, task.rates, verified_only=task.verified_only)
        slots = max(self._last - self._begin + 1, 0)
        self._vendor_price = np.full(slots, np.inf)
        self._vendor_at = {0: NO_VENDOR}
        #: First row that a vendor is ready at; as many as there are slots: none.
        self._start = slots
        if task.vendors:
            for index, vendor in enumerate(task.vendors):
                at = self._find_ready(vendor)
                if at < slots and vendor.price < self._vendor_price[at]:
                    self._vendor_price[at] = vendor.price
                    self._vendor_at[at] = index
                    self._start = min(self._start, at)
        elif slots:
            self._vendor_price[0] = 0.0
            self._start = 0
        self._cost = self._costs()
        # GB that a node must have free; one without any for tasks is never used.
        self._need_memory: Floats = task.memory_demand - grid.memory_slack
        self._job = TaskNeed(
            self._rates.rate,
            self._rates.units,
            self._rates.need(task.compute_demand, slots=grid.slots),
            task.memory_demand,
            self._vendor_price,
        )
        self._listed: Cells | None = None

    def _find_ready(self, offer: LaborVendor) -> int:
        """Give the first row after a vendor's work; beyond the last where there is none."""
        if not offer.load:
            # Without a limit it begins with the task's arrival, as in the paper.
            return max(self._task.arrival_slot + offer.delay_slots - self._begin, 0)
        ready = self._grid.vendors.find_ready(offer, begin=self._begin, last=self._last)
        # A grid that was not advanced for long ends before the task begins.
        return max((self._last + 1 if ready is None else ready) - self._begin, 0)

    def _costs(self) -> Floats:
        grid, task = self._grid, self._task
        if task.operational_costs is None:
            return self._rates.node_cost
        slots = len(self._vendor_price)
        cost = np.repeat(self._rates.node_cost, max(slots, 2), axis=0)
        offset = self._begin - task.arrival_slot
        for k, node in enumerate(grid.nodes):
            row = task.operational_costs.get(node.id)
            if row is not None:
                own = np.array(row[offset : offset + slots], np.float64)
                cost[: len(own), k] = own
        if len(grid.reserve_price):
            withheld = grid.reserve_price[grid.row(self._begin) :] == np.inf
            cost[: len(withheld)][withheld] = np.inf
        return cost

    def _reserves(self, rows: slice) -> Floats:
        """Give what a sample costs at least where that and prices are added first; else none."""
        grid = self._grid
        if self._task.operational_costs is not None:
            return np.empty((0, 0))
        if len(grid.reserve_price):
            return grid.reserve_price[rows]
        return grid.ask_per_sample.reshape(1, -1) if grid.own_asks else np.empty((0, 0))

    def _cells(self, last_slot: int) -> Cells:
        """Gather at least up to a slot; rows of the cost matrix count from ``_begin``.

        Lists are in slot order, so a longer one serves any earlier deadline.
        """
        if self._listed is None or not self._lists(last_slot):
            self._listed = gather_cells(self._offer(last_slot), self._job)
        return self._listed

    def _lists(self, last_slot: int) -> bool:
        """Tell whether cells have been gathered up to a slot."""
        listed = self._listed
        return listed is not None and len(listed.starts) > last_slot - self._begin + 1

    def _offer(self, last_slot: int) -> OfferedCells:
        grid, rates = self._grid, self._rates
        rows = slice(grid.row(self._begin), grid.row(last_slot) + 1)
        return OfferedCells(
            grid.compute_price[rows],
            grid.memory_price[rows],
            grid.compute_free[rows],
            grid.memory_free[rows],
            self._cost,
            self._reserves(rows),
            rates.node_rate,
            rates.node_class,
            rates.need_compute,
            self._need_memory,
            grid.waste,
            grid.waste_unit,
            grid.node_type,
        )

    def find_plan(self, deadline: int) -> TaskPlan | None:
        """Give the cheapest plan that ends by a deadline, if there is one."""
        deadline = min(deadline, self._last)
        if deadline < self._begin or not self._enough_slots(deadline):
            return None
        return self._solve(deadline - self._begin)

    def _solve(self, row: int) -> TaskPlan | None:
        """Give the cheapest plan that ends by a row."""
        deadline = self._begin + row
        if not self._lists(deadline):
            # In one call what the lists would be used for once.
            return self._plan_solved(*solve_offer(self._offer(deadline), self._job, row))
        listed = self._cells(deadline)
        picked = np.empty(row + 1, np.int64)
        _, count, vendor_slot = solve_deadline(listed, self._job, row, math.inf, -math.inf, picked)
        return self._plan_of(listed, picked[:count], vendor_slot) if count else None

    def check_hint(
        self, claim: int | None, *, deadline: int, ceiling: float
    ) -> tuple[TaskPlan | None, bool, TaskPlan | None]:
        """Give the plan of a deadline, and see whether a claim about later ones is true.

        Parameters
        ----------
        claim : int or None
            Said to be the first deadline after ``deadline`` with a plan cheaper than
            ``ceiling``; ``None``: none on sale has one.
        deadline : int
        ceiling : float

        Returns
        -------
        plan : TaskPlan or None
            As ``find_plan`` gives it.
        clear : bool
            The claim is true, and no rounding can have made it so. False says nothing.
        later : TaskPlan or None
            Of the claimed deadline.
        """
        first, deadline = max(deadline + 1, self._begin), min(deadline, self._last)
        # A cheaper deadline makes all later ones cheaper, so one is enough to rule out.
        before = self._last if claim is None else claim - 1
        if before < first or not self._enough_slots(before):
            before = None
        known = claim is None or (first <= claim <= self._last and self._enough_slots(claim))
        looked = [slot for slot in (before, claim) if slot is not None]
        if not (known and looked and 0.0 < ceiling < math.inf):
            return self.find_plan(deadline), known and not looked, None
        possible = deadline >= self._begin and self._enough_slots(deadline)
        margin = MARGIN * ceiling
        plan, none, later = self._solve_with_hint(
            deadline if possible else None, before=before, claimed=claim, above=ceiling + margin
        )
        if claim is not None:
            none = none and later is not None and later.price < ceiling - margin
        return plan, none, later

    def _solve_with_hint(
        self, deadline: int | None, *, before: int | None, claimed: int | None, above: float
    ) -> tuple[TaskPlan | None, bool, TaskPlan | None]:
        """Give the plans of two deadlines, and whether none by a third is below a price."""
        first, none, later = solve_with_hint(
            self._offer(max(slot for slot in (before, claimed) if slot is not None)),
            self._job,
            self._row(deadline),
            self._row(before),
            self._row(claimed),
            above,
        )
        return self._plan_solved(*first), none, self._plan_solved(*later)

    def _plan_solved(
        self, count: int, vendor_slot: int, slots: Ints, columns: Ints
    ) -> TaskPlan | None:
        return self._plan_at(slots, columns, vendor_slot) if count else None

    def _row(self, slot: int | None) -> int:
        return -1 if slot is None else slot - self._begin

    def _enough_slots(self, deadline: int) -> bool:
        """Tell whether the work would fit the window on the fastest of idle nodes."""
        slots = deadline - self._begin - self._start + 1
        return slots > 0 and slots * self._rates.most_units >= self._job.need

    def trace_price_curve(self, *, first: int, last: int) -> list[tuple[int, float]]:
        """Give ``(deadline, price)`` where the price falls, in order.

        The prices of ``find_plan`` at each deadline, up to rounding in the last digits.
        """
        first, last = max(first, self._begin), min(last, self._last)
        if last < first or not len(self._rates.rate):
            return []
        price = self._trace(first - self._begin, last - self._begin)
        treads: list[tuple[int, float]] = []
        least = math.inf
        for i, now in enumerate(price.tolist()):
            if now < least * (1 - 1e-12):
                least = now
                treads.append((first + i, now))
        return treads

    def _trace(self, first: int, last: int) -> Floats:
        """Give the least price by each row of a range."""
        cells = self._cells(self._begin + last)
        if self._rates.tries(self._job.need, last + 1) < _MANY:
            return trace_cover_curve(cells, self._job, last)[first:]
        return solve_curve(cells, self._job, first, last)

    def find_earliest_below(self, *, first: int, last: int, ceiling: float) -> int | None:
        """Give the first deadline of a range with a plan cheaper than a ceiling."""
        first, last = max(first, self._begin), min(last, self._last)
        if last < first or not len(self._rates.rate):
            return None
        # Most such deadlines are near: look there before laying out what is far.
        reach = _NEAR
        while True:
            end = min(first + reach - 1, last)
            if self._enough_slots(end):
                at = self._find_earliest(first - self._begin, end - self._begin, ceiling)
                if at >= 0:
                    return self._begin + at
            if end == last:
                return None
            first, reach = end + 1, 2 * reach

    def _find_earliest(self, first: int, last: int, ceiling: float) -> int:
        """Give the first row of a range with a plan cheaper than a ceiling; -1: none."""
        return find_earliest_below(self._cells(self._begin + last), self._job, first, last, ceiling)

    def find_soonest(self, *, first: int, last: int) -> TaskPlan | None:
        """Give the cheapest plan of the first deadline of a range that has any."""
        deadline = self.find_earliest_below(first=first, last=last, ceiling=math.inf)
        return None if deadline is None else self.find_plan(deadline)

    def find_most_work(self) -> TaskPlan | None:
        """Give the fastest cell of every slot on sale, cheapest first among equals.

        For a job whose work does not fit the horizon any more. One that asks for a vendor
        gets the one that is ready first.
        """
        if self._start >= len(self._vendor_price) or not len(self._rates.rate):
            return None
        cells = self._cells(self._last)
        picked: list[int] = []
        starts = cells.starts[self._start :].tolist()
        for begin, end in pairwise(starts):
            if begin < end:
                picked.append(
                    min(
                        range(begin, end),
                        key=lambda j: (-cells.cls[j], cells.own[j], cells.node[j]),
                    )
                )
        if not picked:
            return None
        return self._plan_of(cells, np.array(picked, np.int64), self._start)

    def plan_cells(self, cells: Sequence[Cell]) -> TaskPlan:
        """Price cells of the grid as a plan, whether they are on sale or not."""
        slots = np.array([cell.slot - self._begin for cell in cells], np.int64)
        columns = np.array([self._grid.column[cell.node] for cell in cells], np.int64)
        return self._plan_at(slots, columns, None)

    def _plan_of(self, cells: Cells, picked: Ints, vendor_slot: int) -> TaskPlan:
        return self._plan_at(cells.slot[picked], cells.node[picked], vendor_slot)

    def _plan_at(self, slots: Ints, columns: Ints, vendor_slot: int | None) -> TaskPlan:
        """Price a schedule with the vendor that is ready at ``vendor_slot``, if any."""
        grid, task = self._grid, self._task
        rows = slots + grid.row(self._begin)
        rate = self._rates.node_rate[columns]
        if len(grid.reserve_price) and task.operational_costs is None:
            cost = rate * grid.reserve_price[rows, columns]
        else:
            cost = self._cost[slots if self._cost.shape[0] > 1 else 0, columns]
        lam = grid.compute_price[rows, columns]
        phi = grid.memory_price[rows, columns]
        compute, memory = self._add_up(rate, lam, phi)
        vendor = NO_VENDOR if vendor_slot is None else self._vendor_at[vendor_slot]
        # Vendors without a limit have no work to be noted.
        has_load = vendor != NO_VENDOR and task.vendors[vendor].load > 0
        named = grid.cells_of(slots + self._begin, columns)
        return TaskPlan(
            schedule=Schedule(
                cells=named,
                vendor=vendor,
                ready_slot=self._begin + (vendor_slot or 0) if has_load else None,
            ),
            parts=PriceParts(
                vendor=0.0 if vendor == NO_VENDOR else float(task.vendors[vendor].price),
                operational=math.fsum(cost.tolist()),
                compute=compute,
                memory=memory,
            ),
            rows=rows,
            columns=columns,
            rate=rate,
            compute_price=lam,
            memory_price=phi,
        )

    def _add_up(self, rate: Floats, lam: Floats, phi: Floats) -> tuple[float, float]:
        """Give what a schedule's cells cost by their compute and memory prices."""
        demand = self._task.memory_demand
        return math.fsum((rate * lam).tolist()), math.fsum((demand * phi).tolist())

    def find_refusal(self) -> Refusal:
        """Say why no plan exists; call only when none does."""
        grid, rates = self._grid, self._rates
        if self._task.verified_only and not grid.is_verified.any():
            return Refusal.VERIFIED
        if not grid.nodes:
            return Refusal.CAPACITY
        able = self._find_able(rates)
        if not able.any():
            others = self._find_able(find_rates(grid, self._task.rates))
            return Refusal.VERIFIED if others.any() else Refusal.MEMORY
        deadline = min(self._task.deadline_slot, self._last)
        if deadline < self._begin + self._start:
            return Refusal.WINDOW
        rows = slice(grid.row(self._begin + self._start), grid.row(deadline) + 1)
        units = np.where(able, rates.units[rates.node_class], 0)
        fastest = int(units.argmax())
        if (rows.stop - rows.start) * int(units[fastest]) < self._job.need:
            return Refusal.WINDOW
        on_sale = grid.compute_free[rows] > -np.inf
        if len(grid.reserve_price):
            on_sale &= grid.reserve_price[rows] < np.inf
        if on_sale[:, fastest].all():
            return Refusal.CAPACITY
        most = int((on_sale * units).max(axis=1).sum())
        return Refusal.WINDOW if most < self._job.need else Refusal.CAPACITY

    def _find_able(self, rates: Rates) -> NDArray[np.bool_]:
        """Tell which nodes could run the task if nothing were sold of them."""
        grid = self._grid
        return (
            (rates.node_class >= 0)
            & (grid.memory_capacity >= self._need_memory)
            & (grid.compute_capacity >= rates.need_compute)
        )
