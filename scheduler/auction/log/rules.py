"""The rules of one zone's auction; a ``RulesChanged`` event may change most of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Rules that hold for the whole life of a log: cells and prices are made by them.
FIXED_RULES = (
    *("base_memory", "horizon_slots", "first_slot", "day_slots", "money_quantum"),
    *("beats_per_slot", "slot_s", "epoch_s"),
)

#: Rules that hold at once when they change: cards and tax cost what they cost.
CHARGES = ("card_share", "tax_share")

#: Of a price, the most that cards and tax may take together.
MOST_SHARES = 0.75

#: Times a slot that prices come into force, where a zone's settings are silent; and at most.
BEATS_PER_SLOT, MOST_BEATS = 2, 12

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
    #: Slots of a day; days are counted from slot 0.
    day_slots: int = 144
    #: Times a slot that solved prices come into force; see docs/adr/0029.
    beats_per_slot: int = BEATS_PER_SLOT
    #: Length of a slot and begin of slot 0, seconds, the latter since 1970 UTC: by them verifiers
    #: hold beats against the moments of signed heads. 0: there is no clock.
    slot_s: int = 0
    epoch_s: int = 0
    #: Payments are rounded up to whole multiples of this; 0 does not round.
    money_quantum: float = 0.0
    #: Providers are paid posted rates instead of their asks.
    posts_rates: bool = False
    #: The house's fee for a work unit of a job, added to the cost of its plan; see docs/adr/0020.
    fee_per_unit: float = 0.0
    #: Of every price, the shares that pay for cards and for tax; see docs/adr/0021.
    card_share: float = 0.0
    tax_share: float = 0.0
    #: Of a job that its owner gives back, the rent of cells that begin so many slots later, or
    #: sooner, goes back as they are sold again; see docs/adr/0024.
    late_slots: int = 0
    #: Look for a later deadline at which a refused bid would win.
    refusal_hints: bool = True
    #: Further parameters of the policy.
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not 1 <= self.horizon_slots <= MOST_HORIZON:
            raise ValueError(f"horizon_slots must be between 1 and {MOST_HORIZON}")
        if self.day_slots < 1:
            raise ValueError(f"day_slots is {self.day_slots}: a day has a slot at least")
        beats = self.beats_per_slot
        if type(beats) is not int or not 1 <= beats <= MOST_BEATS:
            raise ValueError(f"beats_per_slot is {beats!r}: a slot has 1 to {MOST_BEATS} beats")
        for name in ("base_memory", "money_quantum", "fee_per_unit", "slot_s"):
            value = getattr(self, name)
            # Written so that NaN fails.
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}: it must be finite and not negative")
        if not 0 <= self.late_slots <= MOST_HORIZON:
            raise ValueError(f"late_slots must be between 0 and {MOST_HORIZON}")
        shares = self.card_share, self.tax_share
        if not (min(shares) >= 0 and sum(shares) <= MOST_SHARES):
            raise ValueError(f"the shares {shares} of a price must be from 0 to {MOST_SHARES}")
