"""Bundles whose bids all win or all lose: their entries in the log, and their money.

The limit of such a bundle is held whole. Once the bundle is decided, its hold is released, and each
job that won gets a hold of its own for its payment, like any other bid. So what follows (charges,
refunds, pay for work) knows nothing of bundles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from marketplace.auction.book.decision_rows import build_bundle_columns
from marketplace.auction.book.engine_cache import get_commitment_salt
from marketplace.auction.lane.lane import Lane
from marketplace.auction.models import Bid, Bundle, hold_reference
from marketplace.payments.holds import HoldRequest, HoldSettlement, place_holds, settle_holds
from marketplace.payments.selectors import find_spenders
from scheduler.auction import ChainEntry
from scheduler.auction.log import events


class TakenBundle(NamedTuple):
    """A bundle that the engine has just decided; its bids are entered next."""

    bundle_id: str
    entry: ChainEntry


def take_bundle(lane: Lane, bundle_id: str, arrivals: Sequence[events.BidArrived]) -> TakenBundle:
    """Have the engine decide a bundle."""
    event = events.BundleArrived(bundle_id, tuple(arrivals), get_commitment_salt())
    return TakenBundle(bundle_id, lane.apply(event))


def record_bundles(
    lane: Lane, bundles: Sequence[TakenBundle], *, won: Sequence[tuple[Bid, int]]
) -> None:
    """Write what bundles were decided to be, and turn their holds into those of their bids.

    Parameters
    ----------
    lane, bundles
    won
        Bids of bundles that were admitted, with what each pays.
    """
    if not bundles:
        return
    for of in bundles:
        columns = build_bundle_columns(of.entry) | {"decided_at": lane.now}
        Bundle.objects.filter(pk=of.bundle_id).update(**{name: columns[name] for name in _COLUMNS})
    released = [HoldSettlement(hold_reference(of.bundle_id), None) for of in bundles]
    settle_holds(settlements=released, now=lane.now)
    spenders = find_spenders({end.hold_reference for end in released})
    wanted: list[HoldRequest] = []
    for bid, payment_micros in won:
        # What a job pays counts for the caps that the bundle counted for.
        spender = spenders[hold_reference(bid.bundle_id or "")]
        wanted.append(
            HoldRequest(
                bid.organisation_id,
                # No hold is of nothing; a job that costs nothing gives the least amount back.
                max(payment_micros, 1),
                hold_reference(bid.pk),
                placed_by_id=spender.placed_by_id,
                api_key_id=spender.api_key_id,
            )
        )
    holds = place_holds(
        wanted=wanted,
        now=lane.now,
        are_in_flight=True,
    )
    for hold in holds:
        # What was released is more than they take, and the wallet is locked.
        if isinstance(hold, Exception):
            raise hold


_COLUMNS = ("decided_at", "position", "payment_micros", "refusal", "winning_price_micros")
