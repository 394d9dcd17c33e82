"""The decision log: hash-chained entries with their events and outcomes as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scheduler.auction.log.codec import (
    event_from_json,
    event_to_json,
    outcome_from_json,
    outcome_to_json,
)
from scheduler.auction.log.events import BidArrived, BidPriced, Event
from scheduler.auction.log.outcomes import Outcome
from scheduler.public_log.entries import hash_entry, seal_arrival


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


def seal(event: BidArrived | BidPriced) -> str:
    """Give what a receipt names a bid by (``public_log.entries.seal_arrival``)."""
    return seal_arrival(event_to_json(event))


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
