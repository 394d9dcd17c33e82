"""What a zone's one writer has in hand while its transaction lasts."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from marketplace.auction.book.engine_cache import Book
from marketplace.auction.models import Bid, MarketHead
from marketplace.fleet.models import Zone
from scheduler.auction import ChainEntry
from scheduler.auction.log import events
from scheduler.auction.log.outcomes import DroppedCells, GridChange, Outcome


class TakenBid(NamedTuple):
    """A bid that the engine has just decided, or told its price."""

    bid: Bid
    entry: ChainEntry
    #: With a warm start, what the job would have cost without it.
    cold_price_micros: int | None


@dataclass(slots=True)
class Lane:
    """A zone's book in the hands of its one writer, for one transaction."""

    zone: Zone
    now: datetime
    head: MarketHead
    book: Book
    #: The slot that holds ``now``; it runs already, so cells from the next one on are sold.
    slot: int
    #: Equal as long as nothing is changed of the nodes that the engine goes by.
    fleet: object = None
    #: New entries.
    entries: list[ChainEntry] = field(default_factory=list)
    #: Cells that admitted jobs lost with their nodes; noted and emptied by ``replan``.
    dropped: list[DroppedCells] = field(default_factory=list)
    #: Further members of the event that browsers get.
    news: dict[str, object] = field(default_factory=dict)

    def apply(self, event: events.Event) -> ChainEntry:
        """Let the engine answer an event; recorded when the lane is left."""
        entry = self.book.engine.apply(event)
        self.entries.append(entry)
        outcome: Outcome = entry.outcome
        if isinstance(outcome, GridChange):
            self.dropped.extend(outcome.dropped)
        return entry

    @property
    def first_free_slot(self) -> int:
        return self.slot + 1
