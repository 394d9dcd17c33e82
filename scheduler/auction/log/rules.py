"""The rules of one zone's auction; a ``RulesChanged`` event may change most of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

#: Rules that hold for the whole life of a log: cells and hashes are made by them.
FIXED_RULES = ("base_memory", "horizon_slots", "first_slot", "money_quantum", "pays_eq14")

#: Most slots on sale at a time: each is a row of every table of the grid.
MOST_HORIZON = 1_000_000
#: A negative one would have a winner paid.
_AMOUNTS = ("base_memory", "money_quantum", "alpha", "beta", "money_scale", "steepness")


@dataclass(frozen=True, slots=True)
class ZoneRules:
    """Everything but the events that a replay needs to know."""

    #: ``printed``, ``residual`` or ``lagrangian``.
    policy: str = "residual"
    #: r_b, GB that the shared base model takes on every node.
    base_memory: float = 0.0
    #: Slots on sale at any time.
    horizon_slots: int = 144
    #: First slot on sale when the log begins.
    first_slot: int = 0
    #: Payments are rounded up to whole multiples of this; 0 does not round.
    money_quantum: float = 0.0
    #: Fixed alpha and beta of eqs. 7-8; ``None`` takes running maxima over the
    #: bids already decided.
    alpha: float | None = None
    beta: float | None = None
    #: Factor on b-bar in eqs. 7-8 (the paper leaves the unit of money open and
    #: the prices depend on it). ``None`` makes b-bar unit-free: it is divided by
    #: its running mean and multiplied by ``steepness``.
    money_scale: float | None = None
    #: How fast prices rise when ``money_scale`` is ``None``. On overloaded days of
    #: the benchmark's kind, 0.2 earned 15 to 18 % more welfare than no prices at
    #: all, 0.1 and 0.4 nearly as much, and 1 or more less than none.
    steepness: float = 0.2
    #: Charge eq. 14 instead of the critical payment; for reproducing the paper
    #: only, since it is not truthful.
    pays_eq14: bool = False
    #: Look for a later deadline at which a refused bid would win.
    refusal_hints: bool = True
    #: Further parameters of the policy.
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not 1 <= self.horizon_slots <= MOST_HORIZON:
            raise ValueError(f"horizon_slots must be between 1 and {MOST_HORIZON}")
        for name in _AMOUNTS:
            value = getattr(self, name)
            # Written so that NaN fails.
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}: it must be finite and not negative")


def rules_to_json(rules: ZoneRules) -> dict[str, Any]:
    """Give the rules as plain JSON values."""
    data = asdict(rules)
    data["settings"] = dict(rules.settings)
    return data


def rules_from_json(data: Mapping[str, Any]) -> ZoneRules:
    """Read what ``rules_to_json`` wrote; numbers keep their declared type."""
    return ZoneRules(
        policy=str(data["policy"]),
        base_memory=float(data["base_memory"]),
        horizon_slots=int(data["horizon_slots"]),
        first_slot=int(data["first_slot"]),
        money_quantum=float(data["money_quantum"]),
        alpha=None if data["alpha"] is None else float(data["alpha"]),
        beta=None if data["beta"] is None else float(data["beta"]),
        money_scale=None if data["money_scale"] is None else float(data["money_scale"]),
        steepness=float(data["steepness"]),
        pays_eq14=bool(data["pays_eq14"]),
        refusal_hints=bool(data["refusal_hints"]),
        settings=dict(data["settings"]),
    )
