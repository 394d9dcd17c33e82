"""A zone's whole log as a file that anybody can replay without a database."""

from __future__ import annotations

from collections.abc import Iterator

from marketplace.auction.book import engine_cache as books
from marketplace.auction.models import LogEntry
from marketplace.fleet.models import Zone
from scheduler.auction import ChainEntry
from scheduler.auction.audit import transcripts

#: Entries read at once.
_PAGE_ENTRIES = 500


def write_transcript(zone: Zone, *, with_bids: bool) -> Iterator[str]:
    """JSON lines for ``python -m scheduler verify FILE``; empty before the first entry.

    Without bids, salted commitments stand in their places: the chain, every plan, price and
    payment can still be checked, and what others bid stays theirs.
    """
    first = books.find_first_snapshot(zone_id=zone.pk)
    if first is None:
        return
    yield from transcripts.write_transcript_lines(
        _read_entries(zone),
        zone=zone.name,
        rules=books.restore_engine(first).rules,
        shows=None if with_bids else _never,
    )


def _read_entries(zone: Zone) -> Iterator[ChainEntry]:
    """The log in pages: a slow reader holds no database cursor."""
    log = LogEntry.objects.filter(zone=zone)
    first = 0
    # Positions have no gaps, so a page without entries is the end.
    while page := list(
        books.read_entries(log.filter(position__range=(first, first + _PAGE_ENTRIES - 1)))
    ):
        yield from page
        first += _PAGE_ENTRIES


def _never(_entry: ChainEntry) -> bool:
    return False
