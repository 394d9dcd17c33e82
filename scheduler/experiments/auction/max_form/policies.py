"""The policies with max prices: ``residual`` and the paper's own, ``printed``."""

from __future__ import annotations

import math
from typing import Any

from scheduler.auction.engine.price_policies import (
    SELLING_POLICIES,
    AdmittedSchedule,
    Policies,
    PolicyState,
    PriceRise,
)
from scheduler.auction.log.rules import ZoneRules
from scheduler.auction.search.grid import Grid
from scheduler.experiments.auction.max_form.search import MaxFormSearch
from scheduler.types import Task


class Residual:
    """Eqs. 7-8 of the paper, on the cells with room.

    It departs from the printed mechanism in three ways, each for a reason found by
    running the printed one. First, it searches only cells with room, so no bid is
    turned away after it moved prices. Second, its alpha and beta are running maxima,
    over decided bids, of the value per sample and per GB slot that a schedule must at
    least pay for; Lemma 2 needs no more. A job smaller than one slot still pays for
    the slot, so one tiny job cannot set a huge price. Third, b-bar can be made
    unit-free, see ``max_form_rules``.
    """

    prices_empty_cells = False

    def __init__(self, rules: ZoneRules) -> None:
        given = {**max_form_rules(), **rules.settings}
        self._alpha = _amount_of(given, "alpha")
        self._beta = _amount_of(given, "beta")
        self._money_scale = _amount_of(given, "money_scale")
        self._steepness = _amount_of(given, "steepness") or 0.0

    def search(self, *, grid: Grid, task: Task, from_slot: int) -> MaxFormSearch:
        return MaxFormSearch(grid=grid, task=task, from_slot=from_slot)

    def start(self) -> PolicyState:
        return {"alpha": 0.0, "beta": 0.0, "density_sum": 0.0, "density_count": 0.0}

    def observe(self, state: PolicyState, task: Task) -> PolicyState:
        samples, memory_slots = self._least_use(task)
        alpha = max(state["alpha"], task.bid / samples if samples > 0 else 0.0)
        beta = max(state["beta"], task.bid / memory_slots if memory_slots > 0 else 0.0)
        use = samples + memory_slots
        return {
            "alpha": alpha,
            "beta": beta,
            "density_sum": state["density_sum"] + (task.bid / use if use > 0 else 0.0),
            "density_count": state["density_count"] + 1.0,
        }

    def _least_use(self, task: Task) -> tuple[float, float]:
        """Give the fewest samples and GB slots any schedule pays for."""
        rates = [rate for rate in task.rates.values() if rate > 0]
        if not rates:
            return task.compute_demand, task.memory_demand
        samples = max(task.compute_demand, min(rates))
        exact = task.compute_demand / max(rates) - 1e-9
        slots = max(1.0, float(math.ceil(exact)) if exact < math.inf else exact)
        return samples, task.memory_demand * slots

    def raise_prices(self, state: PolicyState, admission: AdmittedSchedule) -> PriceRise:
        alpha = state["alpha"] if self._alpha is None else self._alpha
        beta = state["beta"] if self._beta is None else self._beta
        need = admission.task.memory_demand
        # Exactly rounded, so the same on every machine.
        samples = math.fsum(admission.rate.tolist())
        gigabytes = need * admission.rate.shape[0]
        density = max(admission.value, 0.0) / (samples + gigabytes) * self._scale(state)
        return PriceRise(
            compute_rise=alpha * (density * admission.rate / admission.compute_capacity),
            memory_rise=beta * (density * need / admission.memory_capacity),
        )

    def _scale(self, state: PolicyState) -> float:
        if self._money_scale is not None:
            return self._money_scale
        if state["density_sum"] <= 0:
            return 0.0
        return self._steepness * state["density_count"] / state["density_sum"]

    def lower_price(self, *, price: float, rise: float, share: float, empty: bool) -> float:
        if empty:
            return 0.0
        # The inverse of eq. 7 for this admission alone.
        return max((price - rise) / (1 + share), 0.0)


class Printed(Residual):
    """Eqs. 7-8 as printed: alpha is b/M and beta b/r. Only ``PrintedEngine`` decides by it."""

    def _least_use(self, task: Task) -> tuple[float, float]:
        return task.compute_demand, task.memory_demand


#: What sells, and the max form to compare it with.
COMPARED_POLICIES: Policies = {**SELLING_POLICIES, "residual": Residual, "printed": Printed}


def max_form_rules(
    *,
    alpha: float | None = None,
    beta: float | None = None,
    money_scale: float | None = None,
    steepness: float = 0.2,
) -> dict[str, Any]:
    """Give the parameters of the max form as ``ZoneRules.settings`` has them.

    Parameters
    ----------
    alpha, beta : float, optional
        Of eqs. 7-8; running maxima over the bids already decided without.
    money_scale : float, optional
        Factor on b-bar in eqs. 7-8 (the paper leaves the unit of money open and
        the prices depend on it). Without, b-bar is unit-free: it is divided by
        its running mean and multiplied by ``steepness``.
    steepness : float
        On overloaded days of the benchmark's kind, 0.2 earned 15 to 18 % more
        welfare than no prices at all, 0.1 and 0.4 nearly as much, and 1 or more
        less than none.
    """
    return {
        "alpha": alpha,
        "beta": beta,
        "money_scale": money_scale,
        "steepness": steepness,
    }


def _amount_of(rules: dict[str, Any], name: str) -> float | None:
    value = rules[name]
    # Written so that NaN fails; a negative one would have a winner paid.
    if value is not None and not 0 <= float(value) < math.inf:
        raise ValueError(f"{name} is {value}: it must be finite and not negative")
    return None if value is None else float(value)
