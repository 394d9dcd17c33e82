"""What no auction can exceed: offline optimum, linear and Lagrangian bounds."""

from scheduler.auction.bounds.lagrangian import LagrangianBound, lagrangian_bound
from scheduler.auction.bounds.program import Solution, linear_bound, offline_optimum
from scheduler.auction.bounds.supply import Supply, grouped, supply_of

__all__ = [
    "LagrangianBound",
    "Solution",
    "Supply",
    "grouped",
    "lagrangian_bound",
    "linear_bound",
    "offline_optimum",
    "supply_of",
]
