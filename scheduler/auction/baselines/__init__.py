"""What the paper compares with: EFT, NTM and Titan. They set no prices."""

from scheduler.auction.baselines.first_fit import earliest_finish, no_merging
from scheduler.auction.baselines.titan import titan

__all__ = ["earliest_finish", "no_merging", "titan"]
