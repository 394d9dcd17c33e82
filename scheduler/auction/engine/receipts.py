"""Bids that are in the log and not decided yet: sealed, in order, with nothing in between.

While such bids are open the zone takes no event but further receipts, decisions in the
order of receipt, and voided receipts. So a decision is made at the prices, cells and rules
that were in force when its bid was received, less what the bids before it have taken.
"""

from __future__ import annotations

from scheduler.auction.log.chain import seal
from scheduler.auction.log.events import (
    BidArrived,
    BidsReceived,
    Event,
    ReceiptsVoided,
    TaskReplanned,
)
from scheduler.auction.log.rules import ZoneRules

#: Seals of open receipts by bid, in the order in which they were given.
Receipts = dict[str, str]


def check_receipts(
    receipts: Receipts, rules: ZoneRules, event: Event, *, sealed: str | None = None
) -> None:
    """Refuse an event that has no place between receipts and decisions.

    Parameters
    ----------
    receipts : dict
    rules : ZoneRules
    event : Event
    sealed : str, optional
        Seal of a bid whose amount is not known; worked out otherwise.

    Raises
    ------
    ValueError
        The message says what should have come first.
    """
    match event:
        case BidsReceived(bids=bids):
            if rules.version == 1:
                raise ValueError("a log of version 1 has no receipts")
            ids = [bid for bid, _ in bids]
            if not ids or len(set(ids)) < len(ids) or any(bid in receipts for bid in ids):
                raise ValueError("a receipt is for one bid or more, each received once")
        case ReceiptsVoided(task_ids=task_ids):
            if not task_ids or not set(task_ids) <= receipts.keys():
                raise ValueError("only open receipts can be voided")
        case BidArrived(task=task):
            _check_version(event, rules)
            if rules.version == 1:
                return
            first = next(iter(receipts), None)
            if first is None or first != task.id:
                raise ValueError(
                    f"bid {task.id} is decided out of turn: {first or 'none'} was received first"
                )
            if receipts[first] != (seal(event) if sealed is None else sealed):
                raise ValueError(f"bid {task.id} is not the one that was received")
        case _:
            if isinstance(event, TaskReplanned):
                _check_version(event, rules)
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


def _check_version(event: BidArrived | TaskReplanned, rules: ZoneRules) -> None:
    if event.version != rules.version:
        raise ValueError(f"an entry of version {event.version} in a log of version {rules.version}")
