"""Compiled arithmetic of the per-task search."""

from scheduler.auction.kernels.boxes import earliest_below, solve_curve, solve_deadline
from scheduler.auction.kernels.cells import gather_cells

__all__ = ["earliest_below", "gather_cells", "solve_curve", "solve_deadline"]
