"""Bids that are in the log and not decided yet: sealed, in order, with nothing in between.

While such bids are open the zone takes no event but further receipts, decisions in the
order of receipt, and voided receipts. So a decision is made at the prices, cells and rules
that were in force when its bid was received, less what the bids before it have taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .entries import seal_arrival

#: Seals of open receipts by bid, in the order in which they were given.
Receipts = dict[str, str]

RECEIVED, VOIDED, ARRIVED = "BidsReceived", "ReceiptsVoided", "BidArrived"
BUNDLED, RESTORED, PRICED = "BundleArrived", "LogRestored", "BidPriced"
#: Events that may stand between a receipt and its decision: none of them sets a price.
BETWEEN = frozenset({RECEIVED, VOIDED, ARRIVED, BUNDLED, RESTORED, PRICED})


@dataclass(frozen=True, slots=True)
class Turn:
    """What an entry has to do with receipts."""

    #: Name of its event.
    kind: str
    #: Bids that it receives, and their seals.
    received: Sequence[tuple[str, str]] = ()
    voided: Sequence[str] = ()
    #: Bids that it decides, and what their seals come to.
    decided: Sequence[tuple[str, str]] = ()
    #: Of a bid: the bundle that it wins or loses with; of a bundle: its own id.
    bundle: str = ""


def read_turn(event: Mapping[str, Any]) -> Turn:
    """Read it from an event as JSON values, bids given or left out."""
    kind = str(event["type"])
    match kind:
        case "BidsReceived":
            return Turn(kind, received=[(str(bid), str(seal)) for bid, seal in event["bids"]])
        case "ReceiptsVoided":
            return Turn(kind, voided=[str(bid) for bid in event["task_ids"]])
        case "BidPriced":
            return Turn(kind, decided=[(str(event["task"]["id"]), seal_arrival(event))])
        case "BidArrived":
            decided = [(str(event["task"]["id"]), seal_arrival(event))]
            return Turn(kind, decided=decided, bundle=str(event.get("bundle", "")))
        case "BundleArrived":
            decided = [(str(of["task"]["id"]), seal_arrival(of)) for of in event["arrivals"]]
            return Turn(kind, decided=decided, bundle=str(event["bundle_id"]))
        case _:
            return Turn(kind)


def check_turn(receipts: Receipts, bundle: tuple[str, Sequence[str]] | None, turn: Turn) -> None:
    """Refuse an event that has no place between receipts and decisions.

    Parameters
    ----------
    receipts : dict
    bundle : tuple of str and sequence of str, optional
        The one that is decided, with its bids that have no entry yet; they come before all else.
    turn : Turn

    Raises
    ------
    ValueError
        The message says what should have come first.
    """
    if bundle is not None and (turn.kind != ARRIVED or turn.decided[0][0] != bundle[1][0]):
        raise ValueError(
            f"{turn.kind} must wait: bundle {bundle[0]} is decided and its "
            f"bid {bundle[1][0]} is not entered"
        )
    if turn.kind == RECEIVED:
        ids = [bid for bid, _ in turn.received]
        if not ids or len(set(ids)) < len(ids) or any(bid in receipts for bid in ids):
            raise ValueError("a receipt is for one bid or more, each received once")
    elif turn.kind == VOIDED:
        if not turn.voided or not set(turn.voided) <= receipts.keys():
            raise ValueError("only open receipts can be voided")
    elif turn.kind in (ARRIVED, BUNDLED, PRICED):
        if turn.kind == ARRIVED and turn.bundle != (bundle[0] if bundle else ""):
            raise ValueError(f"bid {turn.decided[0][0]} is not of the bundle that is decided")
        _check_order(receipts, turn.decided)
    elif turn.kind not in BETWEEN and receipts:
        raise ValueError(
            f"{turn.kind} must wait: bid {next(iter(receipts))} was received and is not decided"
        )


def settle_receipts(receipts: Receipts, turn: Turn) -> None:
    """Open the receipts that an event gives, and close those that it settles."""
    receipts.update(turn.received)
    for task_id in turn.voided:
        del receipts[task_id]
    if turn.kind in (ARRIVED, PRICED):
        receipts.pop(turn.decided[0][0], None)


def _check_order(receipts: Receipts, decided: Sequence[tuple[str, str]]) -> None:
    """Refuse bids that are not the first to have been received, in that order."""
    waiting = iter(receipts)
    for task_id, found in decided:
        first = next(waiting, None)
        if first is None or first != task_id:
            raise ValueError(
                f"bid {task_id} is decided out of turn: {first or 'none'} was received first"
            )
        if receipts[first] != found:
            raise ValueError(f"bid {first} is not the one that was received")
