"""Bids that are in the log and not decided yet: sealed, in order, with nothing in between.

While such bids are open the zone takes no event but further receipts, decisions in the
order of receipt, and voided receipts. So a decision is made at the prices, cells and rules
that were in force when its bid was received, less what the bids before it have taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler.auction.log.chain import seal
from scheduler.auction.log.events import (
    BidArrived,
    BidsReceived,
    BundleArrived,
    Event,
    LogRestored,
    ReceiptsVoided,
)
from scheduler.types import Refusal

#: Seals of open receipts by bid, in the order in which they were given.
Receipts = dict[str, str]


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
    if bundle is not None and not (
        isinstance(event, BidArrived) and event.task.id == bundle.task_ids[0]
    ):
        raise ValueError(
            f"{type(event).__name__} must wait: bundle {bundle.bundle_id} is decided and its "
            f"bid {bundle.task_ids[0]} is not entered"
        )
    match event:
        case BidsReceived(bids=bids):
            ids = [bid for bid, _ in bids]
            if not ids or len(set(ids)) < len(ids) or any(bid in receipts for bid in ids):
                raise ValueError("a receipt is for one bid or more, each received once")
        case ReceiptsVoided(task_ids=task_ids):
            if not task_ids or not set(task_ids) <= receipts.keys():
                raise ValueError("only open receipts can be voided")
        case BidArrived(task=task):
            if event.bundle != (bundle.bundle_id if bundle else ""):
                raise ValueError(f"bid {task.id} is not of the bundle that is decided")
            _check_turns(receipts, [event], sealed)
        case BundleArrived(arrivals=arrivals):
            _check_turns(receipts, arrivals, sealed)
        case LogRestored():
            # It changes nothing, and stands where the backup ended.
            pass
        case _:
            if receipts:
                raise ValueError(
                    f"{type(event).__name__} must wait: bid {next(iter(receipts))} was received "
                    "and is not decided"
                )


def settle_receipts(receipts: Receipts, event: Event) -> None:
    """Open the receipts that an event gives, and close those that it settles."""
    match event:
        case BidsReceived(bids=bids):
            receipts.update(bids)
        case ReceiptsVoided(task_ids=task_ids):
            for task_id in task_ids:
                del receipts[task_id]
        case BidArrived(task=task):
            receipts.pop(task.id, None)
        case _:
            pass


def follow_bundle(bundle: OpenBundle | None, event: Event) -> OpenBundle | None:
    """Give what is open of a bundle after an event; ``None`` once all its bids are entered."""
    if bundle is None or not isinstance(event, BidArrived):
        return bundle
    left = bundle.task_ids[1:]
    return replace(bundle, task_ids=left) if left else None


def _check_turns(
    receipts: Receipts, arrivals: Sequence[BidArrived], sealed: Sequence[str] | None
) -> None:
    """Refuse bids that are not the first to have been received, in that order."""
    seals = [seal(arrival) for arrival in arrivals] if sealed is None else sealed
    waiting = iter(receipts)
    for arrival, found in zip(arrivals, seals, strict=True):
        first = next(waiting, None)
        if first is None or first != arrival.task.id:
            raise ValueError(
                f"bid {arrival.task.id} is decided out of turn: "
                f"{first or 'none'} was received first"
            )
        if receipts[first] != found:
            raise ValueError(f"bid {first} is not the one that was received")
