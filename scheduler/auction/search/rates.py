"""A task's rates over the nodes of a grid, in exact units of work.

Work is counted in units of 2**-41 of (the power of two above) the task's fastest
rate, so that sums do not depend on their order. Rates are rounded to the nearest
unit; the work asked for may fall short by one unit per slot on sale, which is
below a hundred-millionth of one slot's samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scheduler.auction.search.grid import TOLERANCE, Floats, Grid, Ints

_UNIT_BITS = 41
_NEVER = 1 << 61
#: A rate below this runs nothing; a unit of it would have no exact float.
_LEAST_RATE = 1e-200
#: Sets of rates remembered at most.
_REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class Rates:
    """Distinct rates and what each node has to do with them."""

    #: Samples in one unit of work.
    unit: float
    #: Distinct rates, rising, and the same in units.
    rate: Floats
    units: Ints
    #: s_ik by node, and its place among the distinct rates; -1 where the task
    #: cannot run.
    node_rate: Floats
    node_class: Ints
    #: Samples per slot that a node must have free, tolerance taken off.
    need_compute: Floats
    #: Operational cost of a cell at the node's ask, one row.
    node_cost: Floats
    #: Units of the fastest rate; 0 where the task cannot run at all.
    most_units: int

    def need(self, demand: float, *, slots: int) -> int:
        """Give the units of work that a demand in samples comes to."""
        exact = demand / self.unit
        return max(1, math.ceil(exact) - slots) if exact < _NEVER else _NEVER

    def tries(self, need: int, slots: int) -> float:
        """Give how much one pass over the slots has to keep by counts of cells.

        Infinity for more than two rates, which no such pass is made for.
        """
        if len(self.units) > 2:
            return math.inf
        return slots * math.prod(min(need // int(n) + 2, slots + 2) for n in self.units)


def find_rates(grid: Grid, rates: Mapping[str, float], *, verified_only: bool = False) -> Rates:
    """Give a task's rates over a grid; the same again as long as its nodes stay.

    With ``verified_only`` the task cannot run on nodes that are not verified.
    """
    key = verified_only, tuple(rates.items())
    known: Rates | None = grid.by_rates.get(key)
    if known is None:
        if len(grid.by_rates) >= _REMEMBERED:
            grid.by_rates.clear()
        known = grid.by_rates[key] = _rates_on(grid, rates, verified_only=verified_only)
    return known


def _rates_on(grid: Grid, rates: Mapping[str, float], *, verified_only: bool) -> Rates:
    eligible = grid.is_verified if verified_only else np.ones(len(grid.nodes), np.bool_)
    # A type none of whose nodes it may use is one that cannot run it.
    used = set(grid.node_type[eligible].tolist()) if verified_only else range(len(grid.types))
    by_type = [rates.get(name, 0.0) if g in used else 0.0 for g, name in enumerate(grid.types)]
    usable = sorted({rate for rate in by_type if _LEAST_RATE < rate < math.inf})
    top = usable[-1] if usable else 1.0
    unit = math.ldexp(1.0, math.frexp(top)[1] - _UNIT_BITS)
    classes = [(rate, n) for rate in usable if (n := round(rate / unit)) > 0]
    place = {rate: i for i, (rate, _) in enumerate(classes)}
    types = grid.node_type
    node_rate = np.array(by_type, np.float64)[types]
    node_class = np.array([place.get(rate, -1) for rate in by_type], np.int64)[types]
    node_class = np.where(eligible, node_class, -1)
    node_cost = (grid.ask_per_sample * node_rate).reshape(1, -1)
    return Rates(
        unit=unit,
        rate=np.array([rate for rate, _ in classes], np.float64),
        units=np.array([n for _, n in classes], np.int64),
        node_rate=node_rate,
        node_class=node_class,
        need_compute=node_rate - TOLERANCE * grid.compute_capacity,
        node_cost=node_cost,
        most_units=classes[-1][1] if classes else 0,
    )
