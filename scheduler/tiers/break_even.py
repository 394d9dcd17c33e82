"""Break-even demotion: move a job only if what is left of it repays the move.

Not in the paper, whose threshold looks at the time a job has run. A job's steps per second are
known after a short probe. They give its remaining time, and with it the cost of a move.
"""

from __future__ import annotations

import math


def compute_move_cost(
    checkpoint_s: float,
    restore_s: float,
    boot_s: float,
    delay_s: float,
    serverless_price: float,
    worker_price: float,
    delay_price: float,
) -> float:
    """Dollars (times 3600) that a move from serverless to a worker costs one GPU.

    Serverless is paid while the checkpoint is written, the worker while it boots
    and restores, and ``delay_price`` (lambda) for the delay the job sees. Prices
    are per hour, times in seconds, so the result is in dollar seconds per hour.
    """
    return (
        checkpoint_s * serverless_price
        + (boot_s + restore_s) * worker_price
        + delay_s * delay_price
    )


def compute_break_even_s(cost: float, serverless_price: float, worker_price: float) -> float:
    """F*: the remaining seconds above which a move pays; infinite if it never does.

    ``F* = cost / (c_s - p)`` with the cost of :func:`compute_move_cost`.
    """
    if worker_price >= serverless_price:
        return math.inf
    return cost / (serverless_price - worker_price)


def estimate_remaining_s(remaining_s: float, hazard: float) -> float:
    """Mean seconds a job still runs if it may die at ``hazard`` deaths per second.

    ``(1 - exp(-h r)) / h``: ``r`` when jobs do not die, ``1 / h`` when they die fast.
    Comparing it with F* is the one-step look-ahead rule of optimal stopping: as
    long as the chance of dying in the next second times the cost of the move
    exceeds the saving of that second, waiting is better.
    """
    if hazard * remaining_s < 1e-9:
        return remaining_s
    return -math.expm1(-hazard * remaining_s) / hazard


def is_move_due(expected_s: float, boot_s: float, threshold_s: float) -> bool:
    """Whether a job should be handed to a worker that is ready in ``boot_s``.

    Parameters
    ----------
    expected_s : float
        From :func:`estimate_remaining_s`.
    boot_s : float
        The boot happens while the job goes on running on serverless (just-in-time
        hand-off), so only what is left after it can repay the move.
    threshold_s : float
        F* of :func:`compute_break_even_s`.
    """
    return expected_s - boot_s > threshold_s
