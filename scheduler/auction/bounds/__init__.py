"""What no auction can exceed: offline optimum, linear and Lagrangian bounds.

``program`` needs HiGHS and is imported by name only, so that the market, which
solves for prices with the rest, does not.
"""

from scheduler.auction.bounds.lagrangian import LagrangianBound, lagrangian_bound
from scheduler.auction.bounds.supply import Supply, grouped, supply_of

__all__ = ["LagrangianBound", "Supply", "grouped", "lagrangian_bound", "supply_of"]
