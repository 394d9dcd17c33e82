"""What an operator chooses for a lane.

The numbers are those of the PromptTuner paper (sections 4.4, 5.1 and 6.3) unless a line
says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaneRules:
    """Everything the pool algorithms read besides jobs and pools."""

    #: Most GPUs one job may be given; the paper bounds it by the pool alone.
    max_gpus: int = 32
    #: Connecting the GPUs of a gang, seconds ("at most 2").
    connect_s: float = 2.0
    #: Share of the run that a gang spends on exchanging gradients (figure 2a: 0.4-0.5 %).
    exchange_share: float = 0.005
    #: Share of the SLO that a lookup may take.
    lookup_share: float = 0.2
    #: By how much a lookup shortens the run, as the predictions have it. The paper
    #: predicts an upper bound, so 1; it never saw a gain below 1.2.
    predicted_gain: float = 1.0
    #: Seconds between two rounds (section 5.3): a GPU that comes free waits so long at most.
    round_s: float = 0.05
    #: Seconds without work after which a warm GPU above the floor goes back to the cold pool.
    reclaim_s: float = 60.0

    def __post_init__(self) -> None:
        if self.max_gpus < 1:
            raise ValueError(f"max_gpus must be at least 1, got {self.max_gpus}")
        for name in ("connect_s", "exchange_share", "round_s", "reclaim_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be below zero, got {getattr(self, name)}")
        if not 0 <= self.lookup_share <= 1:
            raise ValueError(f"lookup_share is a share, 0 to 1, got {self.lookup_share}")
        if not self.predicted_gain >= 1:
            raise ValueError(f"predicted_gain must be at least 1, got {self.predicted_gain}")
