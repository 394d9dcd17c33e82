"""Whether an idle worker is kept for a job that is still to come.

A rent holds its price for as long as it lasts, so a worker rented cheaply is worth more than
its next minute. It is kept while what the next job saves by it is more than the rent until that
job is expected. The wait is at least as long as the time since the last job that took a worker.
So when jobs stop coming, the workers are given back one after the other (the break-even of ski
rental: Karlin, Manasse, Rudolph and Sleator, 1988).
"""

from __future__ import annotations

#: Weight of the newest job in the running means.
NEWEST = 0.05


def update_mean(mean: float, value: float, count: int) -> float:
    """Give a running mean of ``count`` values with one more; older ones fade.

    The first values count alike, so that no starting value has to be chosen.
    """
    return mean + (value - mean) * max(NEWEST, 1.0 / (count + 1.0))


def is_worth_holding(
    price: float,
    next_price: float,
    boot_s: float,
    delay_price: float,
    use_s: float,
    wait_s: float,
) -> bool:
    """Whether an idle worker is worth its rent until a job needs it.

    Parameters
    ----------
    price : float
        Of the worker, dollars per GPU hour.
    next_price : float
        What a worker costs that is rented when it is needed.
    boot_s : float
        Seconds such a worker boots, at its own rent and while the job waits.
    delay_price : float
        Dollars per hour of delay.
    use_s : float
        Seconds a job is expected to use it.
    wait_s : float
        Seconds until one is expected.
    """
    saved = (next_price - price) * use_s + boot_s * (next_price + delay_price)
    return saved > price * wait_s
