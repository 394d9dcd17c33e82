"""The rules of one zone's auction; a ``RulesChanged`` event may change most of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Rules that hold for the whole life of a log: cells and prices are made by them.
FIXED_RULES = ("base_memory", "horizon_slots", "first_slot", "money_quantum")

#: The form of the log that this program writes and reads.
LOG_VERSION = 2

#: Most slots on sale at a time: each is a row of every table of the grid.
MOST_HORIZON = 1_000_000


@dataclass(frozen=True, slots=True)
class ZoneRules:
    """Everything but the events that a replay needs to know."""

    #: Name of a price policy, see ``engine.price_policies``.
    policy: str = "lagrangian"
    #: r_b, GB that the shared base model takes on every node.
    base_memory: float = 0.0
    #: Slots on sale at any time.
    horizon_slots: int = 144
    #: First slot on sale when the log begins.
    first_slot: int = 0
    #: Payments are rounded up to whole multiples of this; 0 does not round.
    money_quantum: float = 0.0
    #: Providers are paid posted rates instead of their asks.
    posts_rates: bool = False
    #: The house's fee for a work unit of a job, added to the cost of its plan; see docs/adr/0020.
    fee_per_unit: float = 0.0
    #: Look for a later deadline at which a refused bid would win.
    refusal_hints: bool = True
    #: Further parameters of the policy.
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not 1 <= self.horizon_slots <= MOST_HORIZON:
            raise ValueError(f"horizon_slots must be between 1 and {MOST_HORIZON}")
        for name in ("base_memory", "money_quantum", "fee_per_unit"):
            value = getattr(self, name)
            # Written so that NaN fails.
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}: it must be finite and not negative")


def rules_to_json(rules: ZoneRules) -> dict[str, Any]:
    """Give the rules as plain JSON values."""
    return {
        "policy": rules.policy,
        "base_memory": rules.base_memory,
        "horizon_slots": rules.horizon_slots,
        "first_slot": rules.first_slot,
        "money_quantum": rules.money_quantum,
        "refusal_hints": rules.refusal_hints,
        "settings": dict(rules.settings),
        # Left out where asks are paid.
        **({"posts_rates": True} if rules.posts_rates else {}),
        # Left out where there is none.
        **({"fee_per_unit": rules.fee_per_unit} if rules.fee_per_unit else {}),
        "version": LOG_VERSION,
    }


def rules_from_json(data: Mapping[str, Any]) -> ZoneRules:
    """Read what ``rules_to_json`` wrote; numbers get their declared type.

    Raises
    ------
    ValueError
        If the log is of another version, or a value is not one that rules may have.
    """
    if data.get("version") != LOG_VERSION:
        raise ValueError(f"log version {data.get('version')!r}: this program reads {LOG_VERSION}")
    return ZoneRules(
        policy=str(data["policy"]),
        base_memory=float(data["base_memory"]),
        horizon_slots=int(data["horizon_slots"]),
        first_slot=int(data["first_slot"]),
        money_quantum=float(data["money_quantum"]),
        refusal_hints=bool(data["refusal_hints"]),
        settings=dict(data["settings"]),
        posts_rates=bool(data.get("posts_rates", False)),
        fee_per_unit=float(data.get("fee_per_unit", 0.0)),
    )
