"""Prices in whole units of money, rounded up in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scheduler.types import PriceParts


@dataclass(frozen=True, slots=True)
class Rounding:
    """Round prices up to whole multiples of a quantum; 0 does not round."""

    quantum: float

    def parts(self, parts: PriceParts) -> PriceParts:
        """Give a price's parts with what rounding up adds."""
        missing = self.missing(parts.total)
        return PriceParts(parts.vendor, parts.operational, parts.compute, parts.memory, missing)

    def missing(self, price: float) -> float:
        """Give what is missing to the next whole unit."""
        if self.quantum <= 0:
            return 0.0
        units = price / self.quantum
        return math.ceil(units - _slack(units)) * self.quantum - price

    def most_below(self, bid: float) -> float:
        """Give the price before rounding that a plan must undercut for a bid to win."""
        if self.quantum <= 0:
            return bid
        units = math.ceil(bid / self.quantum) - 1
        return (units + _slack(units)) * self.quantum


def _slack(units: float) -> float:
    """Give the part of a unit that a sum's own rounding error may not cost."""
    return min(max(1e-9, 1e-15 * abs(units)), 1e-3)
