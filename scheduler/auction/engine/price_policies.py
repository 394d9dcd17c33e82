"""Price policies: how the dual prices of cells move.

A policy is a small object without state of its own. It defines the search for a task's cells and
the change of prices at an admission and at a release. It also defines the state between bids, a few
numbers that the engine holds and writes to its snapshots. Prices move only after a bid is decided,
so no bid ever moves its own price.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from scheduler.auction.log.rules import ZoneRules
from scheduler.auction.search.grid import Floats, Grid
from scheduler.auction.search.task_search import Search
from scheduler.types import Task

#: What a policy remembers between bids.
PolicyState = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class AdmittedSchedule:
    """One admitted schedule, its cells along the arrays' only axis."""

    task: Task
    #: b_il: bid minus vendor price minus operational cost.
    value: float
    #: s_ik of each cell.
    rate: Floats
    #: Capacities of each cell, the base model taken off.
    compute_capacity: Floats
    memory_capacity: Floats
    #: Prices of each cell before this admission.
    compute_price: Floats
    memory_price: Floats


@dataclass(frozen=True, slots=True)
class PriceRise:
    """What an admission adds to the prices of its cells.

    The engine makes ``price * (1 + share of capacity taken) + rise`` of it, the
    form of eqs. 7-8, and logs the rises: with them, prices can be followed
    without knowing any bid. A policy of another form gives the rise that leads to
    the price it wants.
    """

    compute_rise: Floats
    memory_rise: Floats


class PricePolicy(Protocol):
    """What the engine asks of a policy."""

    #: Cells of which nothing is sold have prices too.
    prices_empty_cells: bool

    def search(self, *, grid: Grid, task: Task, from_slot: int) -> Search:
        """Lay a task out over the cells it may use, at the policy's form of prices."""
        ...

    def start(self) -> PolicyState:
        """Give the state of a policy that has seen nothing."""
        ...

    def observe(self, state: PolicyState, task: Task) -> PolicyState:
        """Take note of a bid that has just been decided, either way."""
        ...

    def raise_prices(self, state: PolicyState, admission: AdmittedSchedule) -> PriceRise:
        """Give what an admission adds to prices."""
        ...

    def lower_price(self, *, price: float, rise: float, share: float, empty: bool) -> float:
        """Give a cell's price after a release.

        ``share`` is the released part of the capacity, ``rise`` the constant
        term its admission had added, and ``empty`` says that nothing is left on
        the cell.
        """
        ...


#: Policies by the name that a zone's rules give.
Policies = Mapping[str, Callable[[ZoneRules], PricePolicy]]


class Lagrangian:
    """Additive prices per cell, set by ``PricesSolved`` events.

    Between solves the price of a cell grows with its sold share, ``price * (1 + growth * share)``,
    and shrinks by the same factor when the share is given back. Bids have no part in that; they
    reach prices through the forecast of the next solve alone.
    """

    prices_empty_cells = True

    def __init__(self, rules: ZoneRules) -> None:
        self._growth = float(rules.settings.get("growth", 0.0))
        if self._growth < 0:
            raise ValueError("settings.growth must not be negative")

    def search(self, *, grid: Grid, task: Task, from_slot: int) -> Search:
        return Search(grid=grid, task=task, from_slot=from_slot)

    def start(self) -> PolicyState:
        return {}

    def observe(self, state: PolicyState, task: Task) -> PolicyState:
        return state

    def raise_prices(self, state: PolicyState, admission: AdmittedSchedule) -> PriceRise:
        # The engine grows prices by the whole share; the rise makes that ``growth``.
        less = self._growth - 1.0
        return PriceRise(
            compute_rise=admission.compute_price
            * (less * admission.rate / admission.compute_capacity),
            memory_rise=admission.memory_price
            * (less * admission.task.memory_demand / admission.memory_capacity),
        )

    def lower_price(self, *, price: float, rise: float, share: float, empty: bool) -> float:
        # The solved price itself does not go when a cell empties: it is the
        # forecast's, not the sold job's.
        return price / (1.0 + self._growth * share)


#: What every zone sells under, from its first bid.
SELLING_POLICY = "lagrangian"
#: What the rules of a log that begins now may name.
SELLING_POLICIES: Policies = {SELLING_POLICY: Lagrangian}


def make_policy(rules: ZoneRules, policies: Policies) -> PricePolicy:
    """Give the policy a zone names.

    Raises
    ------
    ValueError
        If no policy has that name.
    """
    make = policies.get(rules.policy)
    if make is None:
        raise ValueError(
            f"unknown price policy {rules.policy!r}: choose one of {', '.join(sorted(policies))}"
        )
    return make(rules)
