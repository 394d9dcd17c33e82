"""A zone's whole log as a file that anybody can replay without a database."""

from __future__ import annotations

from collections.abc import Iterator

from marketplace.auction import book as books
from marketplace.auction.models import LogEntry
from marketplace.fleet.models import Zone
from scheduler.auction import transcripts


def transcript_lines(zone: Zone) -> Iterator[str]:
    """JSON lines for ``python -m scheduler auction verify FILE``; empty before the first entry.

    They hold every bid's amount, which the operator publishes or does not.
    """
    first = books.first_snapshot(zone_id=zone.pk)
    if first is None:
        return
    yield from transcripts.transcript_lines(
        books.entries(LogEntry.objects.filter(zone=zone)),
        rules=books.engine_of(first).rules,
    )
