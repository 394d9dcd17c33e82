"""What no auction can exceed: offline optimum, linear and Lagrangian bounds.

``program`` needs HiGHS and is imported by name only, so that the market, which
solves for prices with the rest, does not.
"""

from scheduler.auction.prices.capacity import Supply, make_capacity, pool_places
from scheduler.experiments.auction.bounds.dual_bound import LagrangianBound, lagrangian_bound

__all__ = ["LagrangianBound", "Supply", "lagrangian_bound", "make_capacity", "pool_places"]
