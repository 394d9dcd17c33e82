"""Receipts of a zone's engine: its events as the turns that the published log is checked by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler.auction.log.chain import seal
from scheduler.auction.log.events import (
    BidArrived,
    BidPriced,
    BidsReceived,
    BundleArrived,
    Event,
    ReceiptsVoided,
)
from scheduler.public_log import turns
from scheduler.public_log.turns import Receipts, Turn
from scheduler.types import Refusal


@dataclass(frozen=True, slots=True)
class OpenBundle:
    """A bundle that is decided, with bids that have no entry yet; they come before all else."""

    bundle_id: str
    #: Of those bids, in their order.
    task_ids: tuple[str, ...]
    #: What their plans are searched for, the bundle's own deadline or an earlier one.
    deadline_slot: int
    #: ``None``: they win.
    refusal: Refusal | None


def check_receipts(
    receipts: Receipts,
    bundle: OpenBundle | None,
    event: Event,
    *,
    sealed: Sequence[str] | None = None,
) -> None:
    """Refuse an event that has no place between receipts and decisions.

    Parameters
    ----------
    receipts : dict
    bundle : OpenBundle, optional
        The one whose bids are entered now.
    event : Event
    sealed : sequence of str, optional
        Seals of bids whose amounts are not known, one for each; worked out otherwise.

    Raises
    ------
    ValueError
        The message says what should have come first.
    """
    open_bundle = None if bundle is None else (bundle.bundle_id, bundle.task_ids)
    turns.check_turn(receipts, open_bundle, _read_turn(event, sealed))


def settle_receipts(receipts: Receipts, event: Event) -> None:
    """Open the receipts that an event gives, and close those that it settles."""
    # What is decided was held against its seal already.
    turns.settle_receipts(receipts, _read_turn(event, [""] * len(_list_arrivals(event))))


def follow_bundle(bundle: OpenBundle | None, event: Event) -> OpenBundle | None:
    """Give what is open of a bundle after an event; ``None`` once all its bids are entered."""
    if bundle is None or not isinstance(event, BidArrived):
        return bundle
    left = bundle.task_ids[1:]
    return replace(bundle, task_ids=left) if left else None


def _read_turn(event: Event, sealed: Sequence[str] | None) -> Turn:
    kind, arrivals = type(event).__name__, _list_arrivals(event)
    seals = [seal(arrival) for arrival in arrivals] if sealed is None else sealed
    ids = [arrival.task.id for arrival in arrivals]
    decided = tuple(zip(ids, seals, strict=True)) if arrivals else ()
    match event:
        case BidsReceived(bids=bids):
            return Turn(kind, received=bids)
        case ReceiptsVoided(task_ids=task_ids):
            return Turn(kind, voided=task_ids)
        case BidPriced():
            return Turn(kind, decided=decided)
        case BidArrived(bundle=bundle):
            return Turn(kind, decided=decided, bundle=bundle)
        case BundleArrived(bundle_id=bundle_id):
            return Turn(kind, decided=decided, bundle=bundle_id)
        case _:
            return Turn(kind)


def _list_arrivals(event: Event) -> Sequence[BidArrived | BidPriced]:
    match event:
        case BidArrived() | BidPriced():
            return (event,)
        case BundleArrived(arrivals=arrivals):
            return arrivals
        case _:
            return ()
