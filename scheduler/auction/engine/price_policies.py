"""Price policies: how the dual prices of cells move.

A policy is a small object without state of its own. It says which form its
prices take, how they answer to an admission and to a release, and what it
remembers between bids (a few numbers, kept by the engine and written to its
snapshots). Prices move only after a bid is decided, so no bid ever moves its
own price.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from scheduler.auction.log.rules import ZoneRules
from scheduler.auction.search.grid import Floats
from scheduler.types import Task

#: What a policy remembers between bids.
Memory = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Admission:
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
class Raised:
    """What an admission adds to the prices of its cells.

    The engine makes ``price * (1 + share of capacity taken) + rise`` of it, the
    form of eqs. 7-8, and logs the rises: with them, prices can be followed
    without knowing any bid. A policy of another form gives the rise that leads to
    the price it wants.
    """

    compute_rise: Floats
    memory_rise: Floats


class Policy(Protocol):
    """What the engine asks of a policy."""

    #: Prices enter through their sum over cells (else through their maximum).
    additive: bool
    #: Only cells with room are searched.
    residual: bool
    #: Prices rise when the surplus is positive, before the room is checked.
    raises_before_check: bool

    def start(self) -> Memory:
        """Give the memory of a policy that has seen nothing."""
        ...

    def observed(self, memory: Memory, task: Task) -> Memory:
        """Take note of a bid that has just been decided, either way."""
        ...

    def raised(self, memory: Memory, admission: Admission) -> Raised:
        """Give what an admission adds to prices."""
        ...

    def lowered(
        self,
        *,
        price: float,
        rise: float,
        share: float,
        empty: bool,
    ) -> float:
        """Give a cell's price after a release.

        ``share`` is the released part of the capacity, ``rise`` the constant
        term its admission had added, and ``empty`` says that nothing is left on
        the cell.
        """
        ...


class PrimalDual:
    """Eqs. 7-8 of the paper.

    ``printed`` is the mechanism as it stands in the paper: the search ignores
    what is sold, prices rise before the room is checked, alpha and beta are
    b/M and b/r.

    ``residual`` departs from it in three ways, each for a reason found by
    running the printed one. It searches only cells with room, so no bid is
    turned away after it moved prices. Its alpha and beta are running maxima over
    decided bids of value per sample and per GB slot that a schedule must at
    least pay for (a job smaller than one slot still pays for the slot, so one
    tiny job cannot set a huge price); Lemma 2 needs no more than that. And
    b-bar can be made unit-free, see ``ZoneRules.money_scale``.
    """

    additive = False

    def __init__(self, rules: ZoneRules, *, printed: bool) -> None:
        self._rules = rules
        self._printed = printed
        self.residual = not printed
        self.raises_before_check = printed

    def start(self) -> Memory:
        return {"alpha": 0.0, "beta": 0.0, "density_sum": 0.0, "density_count": 0.0}

    def observed(self, memory: Memory, task: Task) -> Memory:
        samples, memory_slots = self._least_use(task)
        alpha = max(memory["alpha"], task.bid / samples if samples > 0 else 0.0)
        beta = max(memory["beta"], task.bid / memory_slots if memory_slots > 0 else 0.0)
        use = samples + memory_slots
        return {
            "alpha": alpha,
            "beta": beta,
            "density_sum": memory["density_sum"] + (task.bid / use if use > 0 else 0.0),
            "density_count": memory["density_count"] + 1.0,
        }

    def _least_use(self, task: Task) -> tuple[float, float]:
        """Give the fewest samples and GB slots any schedule pays for."""
        if self._printed:
            return task.compute_demand, task.memory_demand
        rates = [rate for rate in task.rates.values() if rate > 0]
        if not rates:
            return task.compute_demand, task.memory_demand
        samples = max(task.compute_demand, min(rates))
        exact = task.compute_demand / max(rates) - 1e-9
        slots = max(1.0, float(math.ceil(exact)) if exact < math.inf else exact)
        return samples, task.memory_demand * slots

    def raised(self, memory: Memory, admission: Admission) -> Raised:
        rules = self._rules
        alpha = memory["alpha"] if rules.alpha is None else rules.alpha
        beta = memory["beta"] if rules.beta is None else rules.beta
        need = admission.task.memory_demand
        # Exactly rounded, so the same on every machine.
        samples = math.fsum(admission.rate.tolist())
        gigabytes = need * admission.rate.shape[0]
        scale = self._scale(memory)
        density = max(admission.value, 0.0) / (samples + gigabytes) * scale
        return Raised(
            compute_rise=alpha * (density * admission.rate / admission.compute_capacity),
            memory_rise=beta * (density * need / admission.memory_capacity),
        )

    def _scale(self, memory: Memory) -> float:
        if self._rules.money_scale is not None:
            return self._rules.money_scale
        if memory["density_sum"] <= 0:
            return 0.0
        return self._rules.steepness * memory["density_count"] / memory["density_sum"]

    def lowered(self, *, price: float, rise: float, share: float, empty: bool) -> float:
        if empty:
            return 0.0
        # The inverse of eq. 7 for this admission alone.
        return max((price - rise) / (1 + share), 0.0)


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


def make_policy(rules: ZoneRules) -> Policy:
    """Give the policy a zone names.

    Raises
    ------
    ValueError
        If no policy has that name.
    """
    if rules.policy == "printed":
        return PrimalDual(rules, printed=True)
    if rules.policy == "residual":
        return PrimalDual(rules, printed=False)
    if rules.policy == "lagrangian":
        return Lagrangian(rules)
    raise ValueError(
        f"unknown price policy {rules.policy!r}: choose printed, residual or lagrangian"
    )
