"""When so many bids came that prices should not wait for their next turn."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from scheduler.auction.prices.counted_bids import EmptyZone, select_counted
from scheduler.types import Task

#: Bids after which prices are solved again: in mean slots of the day so far, and at least.
BURST, LEAST_BURST = 1.3, 20


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
    bids = len(select_counted(recent, zone, won=won))
    return bids >= LEAST_BURST and is_burst(
        bids=bids, today=len(select_counted(today, zone, won=won)), slots=slots
    )


def is_burst(*, bids: int, today: int, slots: int) -> bool:
    """Tell whether so many counted bids in a slot are a burst on a day of so many."""
    return bids >= max(BURST * today / max(slots, 1), LEAST_BURST)
