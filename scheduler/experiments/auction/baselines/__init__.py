"""What the paper compares with: EFT, NTM and Titan. They set no prices."""

from scheduler.experiments.auction.baselines.first_fit import earliest_finish, no_merging
from scheduler.experiments.auction.baselines.titan import titan

__all__ = ["earliest_finish", "no_merging", "titan"]
