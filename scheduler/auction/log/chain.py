"""The decision log: hash-chained entries, and the check that replays them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scheduler.auction.log.canonical_json import serialize_canonical
from scheduler.auction.log.codec import (
    event_from_json,
    event_to_json,
    outcome_from_json,
    outcome_to_json,
)
from scheduler.auction.log.commitments import commit_owner, commit_private, compute_commitment
from scheduler.auction.log.events import BidArrived, Event
from scheduler.auction.log.outcomes import Outcome


def digest(value: Any) -> str:
    """Give the SHA-256 of a value's canonical JSON in UTF-8, in hex."""
    return hashlib.sha256(serialize_canonical(value).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ChainEntry:
    """One event, what it led to, and the chain up to it."""

    #: 1 for the first entry of a log.
    position: int
    event: Event
    outcome: Outcome
    #: ``hash`` of the entry before; of the rules for the first entry.
    prev_hash: str
    #: SHA-256 over position, ``select_public_part`` and ``prev_hash``.
    hash: str


#: Parts of an outcome that tell of the bid.
PRIVATE_PARTS = ("raised", "surplus", "winning_deadline_price", "winning_deadline_slot")


def select_public_part(event: Mapping[str, Any], outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Give what the chain is made of: bids and what reveals them as commitments.

    A log can so be shown with some bids left out and its chain still be checked.
    Takes an event and an outcome as JSON values, bids given or left out already.
    """
    if "task" in event or "arrivals" in event:
        event, outcome = dict(event), dict(outcome)
        salt = event.pop("salt", "")
        if "task" in event:
            event["task"] = _hide_amount(event["task"], salt=salt)
        else:
            event["arrivals"] = [select_public_part(of, {})["event"] for of in event["arrivals"]]
        if "private_commitment" not in outcome:
            hidden = {name: outcome.pop(name) for name in PRIVATE_PARTS if name in outcome}
            outcome["private_commitment"] = commit_private(hidden, salt=salt)
    elif "private" in event:
        hidden = {"private": event["private"], "salt": event["salt"]}
        event = {name: value for name, value in event.items() if name not in hidden}
        event["private_commitment"] = digest(hidden)
    return {"event": event, "outcome": outcome}


def _hide_amount(task: Mapping[str, Any], *, salt: str) -> dict[str, Any]:
    """Give a task with commitments in place of its bid and its owner, if it shows them."""
    shown = dict(task)
    if "bid" in shown:
        shown["bid_commitment"] = compute_commitment(bid=shown.pop("bid"), salt=salt)
        if "owner" in shown:
            shown["owner_commitment"] = commit_owner(shown.pop("owner"), salt=salt)
    return shown


def hash_entry(
    *, position: int, event: Mapping[str, Any], outcome: Mapping[str, Any], prev_hash: str
) -> str:
    """Give the hash of an entry from its JSON values."""
    body = select_public_part(event, outcome)
    return digest({"position": position, "prev_hash": prev_hash, **body})


def hide_bid(data: Mapping[str, Any]) -> dict[str, Any]:
    """Give an entry's JSON with its bid replaced by the commitment to it."""
    return {**data, **select_public_part(data["event"], data["outcome"])}


def seal(event: BidArrived) -> str:
    """Give what a receipt names a bid by: the hash of the event that will decide it.

    It covers all that the published log will say of the bid, the commitment to its amount
    included.
    """
    return digest(select_public_part(event_to_json(event), {})["event"])


def chain_entry(*, position: int, event: Event, outcome: Outcome, prev_hash: str) -> ChainEntry:
    """Give an entry with its hash."""
    hash_ = hash_entry(
        position=position,
        event=event_to_json(event),
        outcome=outcome_to_json(outcome),
        prev_hash=prev_hash,
    )
    return ChainEntry(
        position=position, event=event, outcome=outcome, prev_hash=prev_hash, hash=hash_
    )


def entry_to_json(entry: ChainEntry) -> dict[str, Any]:
    """Give an entry as plain JSON values."""
    return {
        "position": entry.position,
        "event": event_to_json(entry.event),
        "outcome": outcome_to_json(entry.outcome),
        "prev_hash": entry.prev_hash,
        "hash": entry.hash,
    }


def entry_from_json(data: Mapping[str, Any]) -> ChainEntry:
    """Read what ``entry_to_json`` wrote; the hash is taken as it stands."""
    return ChainEntry(
        position=int(data["position"]),
        event=event_from_json(data["event"]),
        outcome=outcome_from_json(data["outcome"]),
        prev_hash=str(data["prev_hash"]),
        hash=str(data["hash"]),
    )
