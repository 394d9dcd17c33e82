"""When so many bids came that prices should not wait for their next turn."""

from __future__ import annotations

#: Bids after which prices are solved again: in mean slots of the day so far, and at least.
BURST, LEAST_BURST = 1.3, 20


def is_burst(*, bids: int, today: int, slots: int) -> bool:
    """Tell whether the slot under way has brought a burst.

    It depends on how many bids came, not on what they offer.

    Parameters
    ----------
    bids : int
        Bids decided in the slot under way, those left out that a solve within this
        slot has seen.
    today : int
        Bids decided today, these included.
    slots : int
        Slots of today, the one under way included.
    """
    return bids >= max(BURST * today / max(slots, 1), LEAST_BURST)
