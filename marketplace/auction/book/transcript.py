"""A zone's whole log as a file that anybody can replay without a database."""

from __future__ import annotations

from collections.abc import Iterator

from marketplace.auction.book import engine_cache as books
from marketplace.auction.book.log_segments import read_log
from marketplace.fleet.models import Zone
from scheduler.auction import ChainEntry
from scheduler.auction.audit import transcripts


def write_transcript(zone: Zone, *, with_bids: bool) -> Iterator[str]:
    """JSON lines for ``python -m scheduler verify FILE``; empty before the first entry.

    Without bids, salted commitments stand in their places: the chain, every plan, price and
    payment can still be checked, and what others bid stays theirs.
    """
    first = books.find_first_snapshot(zone_id=zone.pk)
    if first is None:
        return
    yield from transcripts.write_transcript_lines(
        books.build_entries(read_log(zone.pk, first=1)),
        zone=zone.name,
        rules=books.restore_engine(first).rules,
        shows=None if with_bids else _never,
    )


def _never(_entry: ChainEntry) -> bool:
    return False
