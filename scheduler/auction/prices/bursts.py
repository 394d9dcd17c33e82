"""When a burst of bids or of sales has prices solved before their turn.

Between solves a price stands, however much is bought at it: it is right for the next cell and
not for the next hundred. Who buys many cells at once would have them all at the price of one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from scheduler.auction.prices.counted_bids import EmptyZone, select_counted
from scheduler.types import Task

#: Bids after which prices are solved again: in mean slots of the day so far, and at least.
BURST, LEAST_BURST = 1.3, 20
#: Work sold after which prices are solved again: in slots of all that is on sale, and in jobs.
MOST_SOLD, LEAST_SOLD = 1.0, 4


def has_burst(
    recent: Sequence[Task],
    today: Sequence[Task],
    *,
    zone: EmptyZone,
    slots: int,
    won: Collection[str] = frozenset(),
) -> bool:
    """Tell whether the slot under way has brought a burst.

    It depends on how many bids came that count, not on what they offer.

    Parameters
    ----------
    recent : sequence of Task
        Bids decided in the slot under way, those left out that a solve within this
        slot has seen.
    today : sequence of Task
        Bids decided today, these included.
    zone : EmptyZone
    slots : int
        Slots of today, the one under way included.
    won : collection of str, optional
        Ids of those that were admitted.
    """
    if len(recent) < LEAST_BURST:
        return False
    bids, of_day = (len(bids) for bids in select_counted([recent, today], zone, won=won))
    return bids >= LEAST_BURST and is_burst(bids=bids, today=of_day, slots=slots)


def is_burst(*, bids: int, today: int, slots: int) -> bool:
    """Tell whether a slot's counted bids are a burst, by those of its day."""
    return bids >= max(BURST * today / max(slots, 1), LEAST_BURST)


def has_sold_much(sold: float, *, jobs: int, capacities: Sequence[float]) -> bool:
    """Tell whether what was sold since the last solve makes another one due.

    Parameters
    ----------
    sold : float
        Samples of the jobs admitted since.
    jobs : int
        How many those are.
    capacities : sequence of float
        Samples a slot of each node on sale.
    """
    return jobs >= LEAST_SOLD and sold > MOST_SOLD * sum(capacities)
