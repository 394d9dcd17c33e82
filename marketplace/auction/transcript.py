"""A zone's whole log as a file that anybody can replay without a database."""

from __future__ import annotations

from collections.abc import Iterator

from marketplace.auction import book as books
from marketplace.auction.models import LogEntry
from marketplace.fleet.models import Zone
from scheduler.auction import Entry, transcripts


def transcript_lines(zone: Zone, *, with_bids: bool) -> Iterator[str]:
    """JSON lines for ``python -m scheduler auction verify FILE``; empty before the first entry.

    Without bids, salted commitments stand in their places: the chain, every plan, price and
    payment can still be checked, and what others bid stays theirs.
    """
    first = books.first_snapshot(zone_id=zone.pk)
    if first is None:
        return
    yield from transcripts.transcript_lines(
        books.entries(LogEntry.objects.filter(zone=zone)),
        rules=books.engine_of(first).rules,
        shows=None if with_bids else _never,
    )


def _never(_entry: Entry) -> bool:
    return False
