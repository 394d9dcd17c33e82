"""The rules of one zone's auction; a ``RulesChanged`` event may change most of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Rules that hold for the whole life of a log: cells and prices are made by them.
FIXED_RULES = ("base_memory", "horizon_slots", "first_slot", "money_quantum")

#: Version of the log's entries that a log written now has. From 2 on a bid is received in the
#: log before it is decided, and what a decision reveals of bids is committed to, not published.
LOG_VERSION = 2

#: Most slots on sale at a time: each is a row of every table of the grid.
MOST_HORIZON = 1_000_000
#: Fields of earlier versions, parameters of policies that no longer sell.
_RETIRED = ("alpha", "beta", "money_scale", "steepness", "pays_eq14")


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
    #: Look for a later deadline at which a refused bid would win.
    refusal_hints: bool = True
    #: Further parameters of the policy.
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    #: What a log of an earlier version states besides: its first hash covers it, and
    #: the policy it names reads it. No policy that sells does.
    retired: Mapping[str, Any] = field(default_factory=dict[str, Any])
    #: Version of the entries from here on; logs of earlier versions name none and have 1.
    version: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.version <= LOG_VERSION:
            raise ValueError(f"version {self.version}: this program reads 1 to {LOG_VERSION}")
        if not 1 <= self.horizon_slots <= MOST_HORIZON:
            raise ValueError(f"horizon_slots must be between 1 and {MOST_HORIZON}")
        for name in ("base_memory", "money_quantum"):
            value = getattr(self, name)
            # Written so that NaN fails.
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}: it must be finite and not negative")
        if self.retired.get("pays_eq14"):
            raise ValueError("pays_eq14: payments that leave out the provider are not supported")


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
        # Left out where asks are paid, as in logs of earlier versions.
        **({"posts_rates": True} if rules.posts_rates else {}),
        **({"version": rules.version} if rules.version > 1 else {}),
        **rules.retired,
    }


def rules_from_json(data: Mapping[str, Any]) -> ZoneRules:
    """Read what ``rules_to_json`` wrote, of this version or an earlier one.

    Numbers get their declared type.

    Raises
    ------
    ValueError
        If a value is none that rules may have.
    """
    return ZoneRules(
        policy=str(data["policy"]),
        base_memory=float(data["base_memory"]),
        horizon_slots=int(data["horizon_slots"]),
        first_slot=int(data["first_slot"]),
        money_quantum=float(data["money_quantum"]),
        refusal_hints=bool(data["refusal_hints"]),
        settings=dict(data["settings"]),
        posts_rates=bool(data.get("posts_rates", False)),
        retired={name: _parse_retired(name, data[name]) for name in _RETIRED if name in data},
        version=int(data.get("version", 1)),
    )


def _parse_retired(name: str, value: Any) -> Any:
    if name == "pays_eq14":
        return bool(value)
    return None if value is None else float(value)
