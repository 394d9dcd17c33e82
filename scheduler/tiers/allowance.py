"""The allowance: Algorithm 1 says how much serverless to buy, not for whom.

Corrected Algorithm 1 gives every job the same F seconds on serverless. Long jobs use
theirs up and have to move all the same; jobs a little longer than F move just before
their end. The improved policy keeps Algorithm 1, driven by the same pressure, but only
to set the *budget*. Each job adds what Algorithm 1 would spend on it and takes what it
is planned to cost. What is left over is the surplus. It lets jobs stay on serverless to
their end where staying costs more than moving, but saves the pause of a move or the wait
for a full tier. So the money spent on serverless stays at the level of Algorithm 1.

Amounts are premiums over the serverful price, in dollars times 3600 per hour price,
per job (GPUs counted).
"""

from __future__ import annotations


def compute_allowance(
    run_s: float, threshold_s: float, premium_price: float, move_cost: float
) -> float:
    """What corrected Algorithm 1 would spend on a job beyond its serverful run.

    Parameters
    ----------
    run_s : float
        Run time, seconds: predicted while the job lives, true once it has ended.
    threshold_s : float
        F of Algorithm 1 when the job was first looked at.
    premium_price : float
        Serverless price minus serverful price, dollars per hour.
    move_cost : float
        Cost of one move without the value of delay
        (:func:`scheduler.tiers.break_even.compute_move_cost`).
    """
    if run_s <= threshold_s:
        return run_s * premium_price
    return threshold_s * premium_price + move_cost


def is_stay_paid(surplus: float, extra: float, share: float) -> bool:
    """Whether the surplus pays for a job to stay.

    One job may take at most ``share`` of what is there: a small surplus then goes to
    the jobs with the least left, where a dollar saves the most waiting.
    """
    return extra <= share * surplus
