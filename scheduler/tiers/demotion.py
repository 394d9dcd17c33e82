"""The improved policy's two rules for a job that runs: leave serverless, or move on.

The simulator and the market both decide by these functions; what a job has left, what
workers cost and what the books say, each reads from its own state.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from scheduler.tiers.allowance import is_stay_paid
from scheduler.tiers.break_even import compute_break_even_s, compute_move_cost, is_move_due


class PossibleMove(NamedTuple):
    """A probed job on serverless, and the worker it could move to."""

    #: Mean seconds it still runs (:func:`~scheduler.tiers.break_even.estimate_remaining_s`).
    expected_s: float
    #: Seconds since it was admitted to serverless.
    age_s: float
    #: Seconds until the worker is ready; the job runs on meanwhile.
    boot_s: float
    #: Dollars per GPU hour.
    serverless_price: float
    worker_price: float
    #: One GPU's move without the value of delay
    #: (:func:`~scheduler.tiers.break_even.compute_move_cost`).
    cost: float
    #: Value of the delay, in the same unit; infinite where no worker is available and the wait
    #: has no known end.
    delay_cost: float
    #: GPUs of the job.
    gpus: float


class Budget(NamedTuple):
    """What the allowance of all jobs holds, dollars times 3600."""

    #: What this job is planned to take so far.
    planned: float
    #: What is left over.
    surplus: float


class DemotionDecision(NamedTuple):
    """Whether the job leaves serverless, and the budget after that."""

    leaves: bool
    planned: float
    surplus: float


def decide_demotion(move: PossibleMove, budget: Budget, share: float) -> DemotionDecision:
    """Decide whether a probed job leaves serverless for the serverful tier.

    It stays where the rest does not repay the move (:mod:`~scheduler.tiers.break_even`).
    It also stays where the rest does not repay the move *and* the delay, if the surplus of
    the allowance pays for staying (:mod:`~scheduler.tiers.allowance`).

    Parameters
    ----------
    move : PossibleMove
    budget : Budget
    share : float
        Largest share of the surplus that one job may take
        (:attr:`~scheduler.tiers.rules.TierRules.surplus_share`).

    Returns
    -------
    DemotionDecision
    """
    premium = move.serverless_price - move.worker_price
    stays_for = (move.age_s + move.expected_s) * premium * move.gpus
    moves_for = ((move.age_s + move.boot_s) * premium + move.cost) * move.gpus
    repaid_s = compute_break_even_s(move.cost, move.serverless_price, move.worker_price)
    if not is_move_due(move.expected_s, move.boot_s, repaid_s):
        surplus = budget.surplus + (budget.planned - stays_for)
        return DemotionDecision(False, stays_for, surplus)
    surplus = budget.surplus + (budget.planned - moves_for)
    worth_s = compute_break_even_s(
        move.cost + move.delay_cost, move.serverless_price, move.worker_price
    )
    if is_stay_paid(surplus, stays_for - moves_for, share) and not is_move_due(
        move.expected_s, move.boot_s, worth_s
    ):
        return DemotionDecision(False, stays_for, surplus + (moves_for - stays_for))
    return DemotionDecision(True, moves_for, surplus)


class PossibleStart(NamedTuple):
    """A job that has not begun, whose work is known, and the worker it could begin on."""

    #: Mean seconds it runs (:func:`~scheduler.tiers.break_even.estimate_remaining_s`).
    expected_s: float
    #: Seconds until the worker, or a serverless machine, is ready.
    boot_s: float
    serverless_boot_s: float
    #: Dollars per GPU hour.
    serverless_price: float
    worker_price: float
    #: Pauses of a later move.
    checkpoint_s: float
    restore_s: float
    #: Dollars per hour of delay.
    delay_price: float
    #: Whether it would wait for a worker for a time that is not known.
    waits: bool
    #: GPUs of the job.
    gpus: float


def decide_start(start: PossibleStart, budget: Budget, share: float) -> DemotionDecision:
    """Decide whether a job begins on a worker instead of on serverless.

    The rule of :func:`decide_demotion` before the first step: there is nothing to move, so only
    the worker's boot has to be repaid. A job that would rather begin on serverless and move when
    the worker is ready, because moves are short beside boots, begins there.

    Parameters
    ----------
    start : PossibleStart
    budget : Budget
    share : float
        As in :func:`decide_demotion`.

    Returns
    -------
    DemotionDecision
        ``leaves`` if it begins on a worker, or waits for one.
    """
    pause_s = start.checkpoint_s + start.restore_s
    cost = start.boot_s * start.worker_price
    delay_cost = max(0.0, start.boot_s - start.serverless_boot_s) * start.delay_price
    if start.waits:
        cost = start.checkpoint_s * start.serverless_price + start.restore_s * start.worker_price
        delay_cost = math.inf
    decision = decide_demotion(
        PossibleMove(
            expected_s=start.expected_s,
            age_s=0.0,
            boot_s=0.0,
            serverless_price=start.serverless_price,
            worker_price=start.worker_price,
            cost=cost,
            delay_cost=delay_cost,
            gpus=start.gpus,
        ),
        budget,
        share,
    )
    if start.waits or not decision.leaves:
        return decision
    # On serverless it would do the boot's worth of work there, then pause.
    instead = (
        start.serverless_boot_s * start.serverless_price
        + start.boot_s * (start.serverless_price - start.worker_price)
        + start.checkpoint_s * start.serverless_price
        + start.restore_s * start.worker_price
        + (start.serverless_boot_s + pause_s - start.boot_s) * start.delay_price
    )
    return DemotionDecision(instead >= 0.0, decision.planned, decision.surplus)


def repays_rent(
    expected_s: float,
    boot_s: float,
    serverless_price: float,
    worker_price: float,
    delay_price: float,
) -> bool:
    """Whether a job is long enough to rent a worker for it."""
    cost = boot_s * (worker_price + delay_price)
    return is_move_due(expected_s, 0.0, compute_break_even_s(cost, serverless_price, worker_price))


class PossibleRehoming(NamedTuple):
    """A job on a worker, and a cheaper worker it could move on to."""

    #: As in :class:`PossibleMove`.
    expected_s: float
    #: When it ends where it is if it does not die, and its deadline, on one clock.
    ends_s: float
    due_s: float
    boot_s: float
    #: The pause, seconds.
    checkpoint_s: float
    restore_s: float
    #: Dollars per GPU hour.
    price_paid: float
    price_offered: float
    #: Dollars per hour of delay.
    delay_price: float


def compute_move_saving(move: PossibleRehoming) -> float:
    """Compute what moving a job on from worker to worker saves.

    The break-even of :func:`decide_demotion` with the price the job pays now in the place of the
    serverless price, and a higher price of delay
    (:attr:`~scheduler.tiers.rules.TierRules.rehome_delay_usd_per_h`). A job that would keep its
    deadline, but not with the pause of a move, stays.

    Parameters
    ----------
    move : PossibleRehoming

    Returns
    -------
    float
        Dollars times 3600 per GPU, the pause not counted; ``-1.0`` if it stays.
    """
    pause_s = move.checkpoint_s + move.restore_s
    if move.ends_s <= move.due_s < move.ends_s + pause_s:
        return -1.0
    cost = compute_move_cost(
        move.checkpoint_s,
        move.restore_s,
        move.boot_s,
        pause_s,
        move.price_paid,
        move.price_offered,
        move.delay_price,
    )
    repaid_s = compute_break_even_s(cost, move.price_paid, move.price_offered)
    if not is_move_due(move.expected_s, move.boot_s, repaid_s):
        return -1.0
    paused = pause_s * move.delay_price
    saved = (move.price_paid - move.price_offered) * (move.expected_s - move.boot_s)
    return max(0.0, saved - cost + paused)


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
    cost = compute_move_cost(0.0, 0.0, boot_s, boot_s, price_paid, price_offered, delay_price)
    if not is_move_due(left_s, 0.0, compute_break_even_s(cost, price_paid, price_offered)):
        return -1.0
    return max(0.0, (price_paid - price_offered) * left_s - price_offered * boot_s)
