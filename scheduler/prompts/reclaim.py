"""Which idle GPUs go back to the cold pool."""

from __future__ import annotations

from collections.abc import Sequence


def count_reclaimable(
    idle_since_s: Sequence[float],
    *,
    warm: int,
    floor: int,
    claimed: int,
    now_s: float,
    reclaim_s: float,
) -> int:
    """Count the idle GPUs of one base model that leave its warm pool.

    Parameters
    ----------
    idle_since_s : sequence of float
        Since when each idle GPU has had no work.
    warm : int
        GPUs of the pool, busy and booting ones included.
    floor : int
        GPUs that stay at any demand; the paper has none.
    claimed : int
        Idle GPUs that a planned gang counts on; the paper's plan has none.
    now_s : float
        The moment of this round.
    reclaim_s : float
        The window: the paper's minute (section 6.3); 10 to 15 s where a floor serves what
        comes next.

    Returns
    -------
    int
        How many; those idle longest go first.
    """
    expired = sum(1 for since_s in idle_since_s if since_s + reclaim_s <= now_s)
    return max(0, min(expired, warm - floor, len(idle_since_s) - claimed))
