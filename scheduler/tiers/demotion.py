"""The improved policy's two rules for a job that runs: leave serverless, or move on.

The simulator and the market both decide by these functions; what a job has left, what
workers cost and what the books say, each reads from its own state.
"""

from __future__ import annotations

from scheduler.tiers.allowance import covers
from scheduler.tiers.break_even import break_even_s, move_cost, moves


def decide_demotion(
    expected_s: float,
    age_s: float,
    boot_s: float,
    serverless_price: float,
    worker_price: float,
    cost: float,
    delay_cost: float,
    gpus: float,
    planned: float,
    surplus: float,
    share: float,
) -> tuple[bool, float, float]:
    """Whether a probed job leaves serverless for the serverful tier, and the books after it.

    It stays where the rest does not repay the move (:mod:`~scheduler.tiers.break_even`).
    It also stays where the rest does not repay the move *and* the delay, if the surplus of
    the allowance pays for staying (:mod:`~scheduler.tiers.allowance`).

    Parameters
    ----------
    expected_s : float
        Mean seconds it still runs (:func:`~scheduler.tiers.break_even.expected_remaining_s`).
    age_s : float
        Seconds since it was admitted to serverless.
    boot_s : float
        Seconds until the worker is ready; the job runs on meanwhile.
    serverless_price, worker_price : float
        Dollars per GPU hour.
    cost : float
        One GPU's move without the value of delay
        (:func:`~scheduler.tiers.break_even.move_cost`).
    delay_cost : float
        Value of the delay, in the same unit; infinite where no worker is to be had and the
        wait has no known end.
    gpus : float
        GPUs of the job.
    planned : float
        What the books hold the job to take so far, dollars times 3600.
    surplus : float
        What is left of the allowance of all jobs, dollars times 3600.
    share : float
        Largest share of the surplus that one job may take
        (:attr:`~scheduler.tiers.rules.TierRules.surplus_share`).

    Returns
    -------
    tuple of bool, float, float
        Whether it leaves; what it is planned to take from now on; the surplus after that.
    """
    premium = serverless_price - worker_price
    stays_for = (age_s + expected_s) * premium * gpus
    moves_for = ((age_s + boot_s) * premium + cost) * gpus
    if not moves(expected_s, boot_s, break_even_s(cost, serverless_price, worker_price)):
        return False, stays_for, surplus + (planned - stays_for)
    surplus += planned - moves_for
    worth_s = break_even_s(cost + delay_cost, serverless_price, worker_price)
    if covers(surplus, stays_for - moves_for, share) and not moves(expected_s, boot_s, worth_s):
        return False, stays_for, surplus + (moves_for - stays_for)
    return True, moves_for, surplus


def compute_move_saving(
    expected_s: float,
    ends_s: float,
    due_s: float,
    boot_s: float,
    checkpoint_s: float,
    restore_s: float,
    price_paid: float,
    price_offered: float,
    delay_price: float,
) -> float:
    """What moving a job on from worker to worker saves; below zero where it should not.

    The break-even of :func:`decide_demotion` with the price the job pays now in the place of the
    serverless price, and a higher price of delay
    (:attr:`~scheduler.tiers.rules.TierRules.rehome_delay_usd_per_h`).

    Parameters
    ----------
    expected_s, boot_s
        As in :func:`decide_demotion`.
    ends_s, due_s : float
        When it ends where it is if it does not die, and its deadline, on one clock. A job
        that would keep the deadline, but not with the pause of a move, stays.
    checkpoint_s, restore_s : float
        The pause, seconds.
    price_paid, price_offered : float
        Dollars per GPU hour.
    delay_price : float
        Dollars per hour of delay.

    Returns
    -------
    float
        Dollars times 3600 per GPU, the pause not counted; ``-1.0`` if it stays.
    """
    pause_s = checkpoint_s + restore_s
    if ends_s <= due_s < ends_s + pause_s:
        return -1.0
    cost = move_cost(
        checkpoint_s, restore_s, boot_s, pause_s, price_paid, price_offered, delay_price
    )
    if not moves(expected_s, boot_s, break_even_s(cost, price_paid, price_offered)):
        return -1.0
    paused = pause_s * delay_price
    return max(0.0, (price_paid - price_offered) * (expected_s - boot_s) - cost + paused)


def compute_renewal_saving(
    left_s: float, boot_s: float, price_paid: float, price_offered: float, delay_price: float
) -> float:
    """What exchanging an idle worker saves the job that would get it; below zero if nothing.

    Prices hold as long as a worker is rented, so a full tier would keep its first ones for
    good. The break-even of a move-on, without checkpoint and restore: the job waits, at
    ``delay_price``, while the cheaper worker boots.

    Parameters
    ----------
    left_s : float
        Seconds the waiting job will run.
    boot_s : float
        Boot of the cheaper worker, seconds.
    price_paid, price_offered : float
        Dollars per GPU hour of the idle worker and of the offer.
    delay_price : float
        As in :func:`compute_move_saving`.

    Returns
    -------
    float
        Dollars times 3600; ``-1.0`` if the worker should be kept.
    """
    cost = move_cost(0.0, 0.0, boot_s, boot_s, price_paid, price_offered, delay_price)
    if not moves(left_s, 0.0, break_even_s(cost, price_paid, price_offered)):
        return -1.0
    return max(0.0, (price_paid - price_offered) * left_s - price_offered * boot_s)
