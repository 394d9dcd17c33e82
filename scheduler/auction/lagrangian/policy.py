"""How prices move between two solves."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.auction.policies import Admission, Memory, Raised
from scheduler.auction.rules import ZoneRules
from scheduler.types import Task


class Lagrangian:
    """Additive prices per cell, set by ``PricesSolved`` events.

    Between solves the price of a cell grows with the share of it that is taken,
    ``price * (1 + growth * share)``, and shrinks by the same factor when the share
    is given back. Bids have no part in that; they reach prices through the
    forecast of the next solve alone.
    """

    additive = True
    residual = True
    raises_before_check = False

    def __init__(self, rules: ZoneRules) -> None:
        self._growth = float(rules.settings.get("growth", 0.0))
        if self._growth < 0:
            raise ValueError("settings.growth must not be negative")

    def start(self) -> Memory:
        return {}

    def observed(self, memory: Memory, task: Task) -> Mapping[str, float]:
        return memory

    def raised(self, memory: Memory, admission: Admission) -> Raised:
        # The engine grows prices by the whole share; the rise makes that ``growth``.
        less = self._growth - 1.0
        return Raised(
            compute_rise=admission.compute_price
            * (less * admission.rate / admission.compute_capacity),
            memory_rise=admission.memory_price
            * (less * admission.task.memory_demand / admission.memory_capacity),
        )

    def lowered(self, *, price: float, rise: float, share: float, empty: bool) -> float:
        # The solved price itself does not go when a cell empties: it is the
        # forecast's, not the sold job's.
        return price / (1.0 + self._growth * share)
