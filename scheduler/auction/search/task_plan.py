"""A schedule of one task as the search finds it."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.auction.search.grid import Floats, Ints
from scheduler.types import PriceParts, Schedule


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """A schedule, its cells as array indices, and what it costs."""

    schedule: Schedule
    parts: PriceParts
    rows: Ints
    columns: Ints
    #: s_ik of each cell.
    rate: Floats
    #: Prices of each cell.
    compute_price: Floats
    memory_price: Floats

    @property
    def price(self) -> float:
        """Give the price before rounding to whole units of money."""
        return self.parts.total
