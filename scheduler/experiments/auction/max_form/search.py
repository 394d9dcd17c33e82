"""The per-task search in the max form: prices enter through their largest.

The problem (12) as printed. Only the layout of cells, the compiled solver and the sum
of prices differ from the live search.
"""

from __future__ import annotations

import math

import numpy as np

from scheduler.auction.search.grid import Floats
from scheduler.auction.search.kernels.cells import OfferedCells
from scheduler.auction.search.task_plan import TaskPlan
from scheduler.auction.search.task_search import Search
from scheduler.experiments.auction.max_form.curves import trace_prices_by_deadline
from scheduler.experiments.auction.max_form.deadlines import solve_deadline
from scheduler.experiments.auction.max_form.fronts import PricedCells, gather_fronts

#: Above this many counts of cells and slots a curve is found tread by tread, not with
#: one pass over them a box.
_MANY_A_BOX = 2_000_000
#: Costs this close differ by the tilt of later slots alone.
_EQUAL = 1 + 2e-10


class MaxFormSearch(Search):
    """One task laid out over the cells with room; see ``Search``."""

    _fronts: PricedCells | None = None

    def _gather(self, last_row: int) -> PricedCells:
        """List the cells at least up to a row; a longer list serves any earlier deadline."""
        if self._fronts is None or len(self._fronts.starts) <= last_row + 1:
            self._fronts = gather_fronts(self._offer(self._begin + last_row), self._job)
        return self._fronts

    def _solve(self, row: int) -> TaskPlan | None:
        return self._solve_below(row, ceiling=math.inf, floor=-math.inf)

    def _solve_below(self, row: int, *, ceiling: float, floor: float) -> TaskPlan | None:
        cells = self._gather(row)
        picked = np.empty(row + 1, np.int64)
        _, count, vendor_slot = solve_deadline(cells, self._job, row, ceiling, floor, picked)
        if not count:
            return None
        some = picked[:count]
        return self._plan_at(cells.slot[some], cells.node[some], vendor_slot)

    def _solve_with_hint(
        self, deadline: int | None, *, before: int | None, claimed: int | None, above: float
    ) -> tuple[TaskPlan | None, bool, TaskPlan | None]:
        cheaper = (
            None
            if before is None
            else self._solve_below(before - self._begin, ceiling=above, floor=above)
        )
        plan, later = (
            None if slot is None else self._solve(slot - self._begin)
            for slot in (deadline, claimed)
        )
        return plan, cheaper is None, later

    def _trace(self, first: int, last: int) -> Floats:
        if self._rates.tries(self._job.need, last + 1) < _MANY_A_BOX:
            return trace_prices_by_deadline(self._gather(last), self._job, last)[first:]
        return self._trace_by_treads(first, last)

    def _trace_by_treads(self, first: int, last: int) -> Floats:
        """Solve the last deadline, then the one before that schedule's end, and so on."""
        price = np.full(last - first + 1, np.inf)
        row, least = last, -math.inf
        self._gather(last)
        while row >= first:
            plan = self._solve_below(row, ceiling=math.inf, floor=least * _EQUAL)
            if plan is None:
                break
            least = plan.price
            finish = max(plan.schedule.finish_slot - self._begin, first)
            price[finish - first : row - first + 1] = plan.price
            row = finish - 1
        return price

    def _find_earliest(self, first: int, last: int, ceiling: float) -> int:
        self._gather(last)
        low, high, middle = first, last + 1, last
        while low < high:
            plan = self._solve_below(middle, ceiling=ceiling, floor=ceiling)
            if plan is not None:
                high = max(low, plan.schedule.finish_slot - self._begin)
            elif middle == last:
                return -1
            else:
                low = middle + 1
            middle = (low + high) // 2
        return low

    def find_most_work(self) -> TaskPlan | None:
        if self._begin > self._last or not len(self._rates.rate):
            return None
        cells = self._gather(self._last - self._begin)
        order = np.lexsort((cells.node, cells.phi, cells.lam, cells.own, -cells.cls, cells.slot))
        if not len(order):
            return None
        some = order[np.append(True, np.diff(cells.slot[order]) > 0)]
        return self._plan_at(cells.slot[some], cells.node[some], None)

    def _add_up(self, rate: Floats, lam: Floats, phi: Floats) -> tuple[float, float]:
        memory = self._task.memory_demand * len(phi)
        return float(lam.max()) * math.fsum(rate.tolist()), float(phi.max()) * memory


class PrintedSearch(MaxFormSearch):
    """The same over all cells, sold or not, as Algorithm 2 has it."""

    def _offer(self, last_slot: int) -> OfferedCells:
        offer = super()._offer(last_slot)
        none = np.full(len(offer.need_compute), -1e300)
        return offer._replace(
            need_compute=none,
            need_memory=np.where(np.isfinite(offer.need_memory), none, offer.need_memory),
        )
