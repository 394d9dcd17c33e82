"""What an operator chooses: variant, control gains, prices, start-up times.

The numbers are those of the Allpass paper (section 5.1, tables 2 and 3) unless a
line says otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Variant(StrEnum):
    """Three readings of one policy, behind one interface."""

    #: Equations 1-2 and Algorithms 1-2 letter by letter.
    PRINTED = "printed"
    #: The same algorithms with the errors of the text repaired.
    CORRECTED = "corrected"
    #: Break-even demotion, just-in-time hand-off, pooled allowance.
    IMPROVED = "improved"


@dataclass(frozen=True, slots=True)
class TierRules:
    """Everything the tier policies read besides the state of the market."""

    variant: Variant = Variant.IMPROVED
    #: Seconds between two ticks.
    tick_s: float = 60.0
    #: Windows of the demand bound function: ``tick_s, 2 tick_s, ...``.
    windows: int = 30
    #: Seconds of threshold per unit of pressure above one (G_up).
    gain_up: float = 10.0
    #: Largest rise of the threshold in one tick, seconds (R_up).
    rate_up_s: float = 100.0
    #: Seconds of threshold per unit of pressure below one (G_dn).
    gain_down: float = 2.0
    #: Largest fall of the threshold in one tick, seconds (R_dn). It never binds,
    #: since ``gain_down * (1 - p) <= gain_down``.
    rate_down_s: float = 30.0
    #: F before the first tick, seconds.
    threshold_s: float = 300.0
    #: Bounds of F; the printed text has none and its F leaves any range. Not from
    #: the paper: one tick, and the largest fixed threshold it compares with.
    threshold_min_s: float = 60.0
    threshold_max_s: float = 3600.0
    #: Seconds on serverless after which the speed of a job is known.
    probe_s: float = 30.0
    #: Pause of a job while its checkpoint is written, seconds.
    checkpoint_s: float = 30.0
    #: Seconds from a ready worker to the first new step of a restored job.
    restore_s: float = 250.0
    #: lambda: what the operator pays to save one job one hour of delay, dollars.
    delay_usd_per_h: float = 5.0
    #: What moving a running job on to a cheaper worker must save beyond its cost, dollars
    #: per GPU: another, still cheaper offer may come.
    rehome_gain_usd: float = 3.5
    #: One job may take this much of the allowance's surplus.
    surplus_share: float = 0.1
    #: Half of what cheaper rents save buys time, the other half stays saved.
    saved_share: float = 0.5
    #: Dollars per GPU hour.
    serverless_usd_per_h: float = 2.10
    conventional_usd_per_h: float = 1.29
    #: Expected start-up times, seconds.
    serverless_boot_s: float = 3.88
    marketplace_boot_s: float = 36.04
    conventional_boot_s: float = 255.59

    def __post_init__(self) -> None:
        for name in ("tick_s", "threshold_max_s", "serverless_usd_per_h"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above zero, got {getattr(self, name)}")
        for name in ("checkpoint_s", "restore_s", "probe_s", "delay_usd_per_h", "rehome_gain_usd"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be below zero, got {getattr(self, name)}")
        for name in ("surplus_share", "saved_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share, 0 to 1, got {getattr(self, name)}")
        if self.windows < 1:
            raise ValueError(f"windows must be at least 1, got {self.windows}")
        if self.threshold_min_s > self.threshold_max_s:
            raise ValueError(
                f"threshold_min_s {self.threshold_min_s} is above "
                f"threshold_max_s {self.threshold_max_s}"
            )

    @property
    def window_s(self) -> float:
        """T, the longest window, seconds."""
        return self.windows * self.tick_s

    @property
    def rehome_delay_usd_per_h(self) -> float:
        """The price of delay at which a move-on that just saves ``rehome_gain_usd`` pays.

        $50 an hour for the 280 s of the defaults, more for shorter pauses: what a wait
        for a better offer is worth does not shrink with the pause.
        """
        # Never below a second: a pause of none would make the price of it infinite.
        pause_s = max(1.0, self.checkpoint_s + self.restore_s)
        return self.delay_usd_per_h + 3600.0 * self.rehome_gain_usd / pause_s

    @property
    def threshold_bounds(self) -> tuple[float, float]:
        """Lower and upper bound of F; none in the printed text."""
        if self.variant is Variant.PRINTED:
            return -math.inf, math.inf
        return self.threshold_min_s, self.threshold_max_s
