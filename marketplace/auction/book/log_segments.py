"""Reading a zone's log as one: entries in files first, then those that are rows.

``log_archiving`` moves old entries into files, some thousand at a time, in one transaction for
each: an entry is a row or in a file, never both and never neither. A file is looked for only where
there is no row, so what is moved meanwhile is found too.

A file is compressed text (xz). Its first line is the manifest without the file's own hash; then
each line is one entry: position, moment, event, outcome and hash.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from marketplace.auction.book.engine_cache import LogRow
from marketplace.auction.models import LogEntry, LogSegment, MarketKey
from marketplace.common.archive_files import ArchiveUnreadable, read_lines
from scheduler.public_log.canonical_json import serialize_canonical

#: Rows read at once: a slow reader holds no cursor.
_PAGE_ROWS = 500


def read_log(zone_id: str, *, first: int, last: int | None = None) -> Iterator[LogRow]:
    """Read a zone's entries in order, from a position on.

    Raises
    ------
    ArchiveUnreadable
        The storage does not have the file, or has another one.
    """
    while last is None or first <= last:
        begin = first
        for row in _read_run(zone_id, first):
            if last is not None and row.position > last:
                return
            yield row
            first = row.position + 1
        if first == begin:
            return


def _read_run(zone_id: str, first: int) -> Iterable[LogRow]:
    """Rows from a position on, or what is left there of the file that has it."""
    rows = LogEntry.objects.filter(zone_id=zone_id, position__gte=first).order_by("position")
    page = list(map(LogRow._make, rows.values_list(*LogRow._fields)[:_PAGE_ROWS]))
    if page and page[0].position == first:
        return page
    segment = find_segment(zone_id, first)
    if segment is None:
        return page
    return (row for row in read_segment(segment) if row.position >= first)


def find_segment(zone_id: str, position: int) -> LogSegment | None:
    """Find the file that has an entry, if one has."""
    before = LogSegment.objects.filter(zone=zone_id, first__lte=position).order_by("-first")
    segment = before.first()
    return segment if segment is not None and segment.last >= position else None


def find_last_segment(zone_id: str) -> LogSegment | None:
    return LogSegment.objects.filter(zone=zone_id).order_by("-first").first()


def find_first_row(zone_id: str) -> int:
    """Find the first position that is in no file."""
    segment = find_last_segment(zone_id)
    return 1 if segment is None else segment.last + 1


def find_marks(zone_id: str, positions: Collection[int]) -> dict[int, tuple[str, datetime]]:
    """Find hash and moment of some entries, by position; those that there are.

    Raises
    ------
    ArchiveUnreadable
        As ``read_log``.
    """
    rows = LogEntry.objects.filter(zone_id=zone_id, position__in=positions).order_by("position")
    columns = rows.values_list("position", "hash", "recorded_at")
    found = {position: (hash_, at) for position, hash_, at in columns}
    missing = sorted(set(positions) - found.keys())
    while missing:
        segment = find_segment(zone_id, missing[0])
        if segment is None:
            missing = missing[1:]
            continue
        inside = {position for position in missing if position <= segment.last}
        # The last one's are known without the file.
        if segment.last in inside:
            found[segment.last] = (segment.head_hash, segment.ended_at)
        if inside - {segment.last}:
            rows_of_file = (row for row in read_segment(segment) if row.position in inside)
            found |= {row.position: (row.hash, row.recorded_at) for row in rows_of_file}
        missing = [position for position in missing if position > segment.last]
    return found


def pack_rows(head: Mapping[str, Any], rows: Sequence[LogRow]) -> bytes:
    """Write entries, each with when it was written, as a file's content."""
    lines = [serialize_canonical(head)]
    for row in rows:
        at = row.recorded_at.isoformat()
        lines.append(json.dumps([row.position, at, row.event, row.outcome, row.hash]))
    return lzma.compress("\n".join(lines).encode(), preset=6)


def read_segment(segment: LogSegment) -> Iterator[LogRow]:
    """Read the entries of a file in order, each with when it was written.

    The storage may be asked over the network, at the first one. A file of entries with prices is
    large once it is unpacked, so it is no further than it is read.

    Raises
    ------
    ArchiveUnreadable
        As ``read_log``.
    """
    where = f"log positions {segment.first} to {segment.last}"
    lines = read_lines(segment.file, sha256=segment.sha256)
    try:
        if next(lines, "") != serialize_canonical(segment.describe_entries()):
            raise ValueError("it says that it has others")
        yield from _parse_lines(lines, segment)
    except ArchiveUnreadable as error:
        raise ArchiveUnreadable(f"{where}: {error}") from error
    except (ValueError, TypeError) as error:
        raise ArchiveUnreadable(f"{where}: the file {segment.file.name}: {error}") from error


def _parse_lines(lines: Iterable[str], segment: LogSegment) -> Iterator[LogRow]:
    before, wanted = segment.prev_hash, segment.first
    for line in lines:
        position, at, event, outcome, digest = json.loads(line)
        if position != wanted:
            raise ValueError(f"entry {wanted} is missing")
        moment = datetime.fromisoformat(at)
        yield LogRow(position, event, outcome, before, digest, moment)
        before, wanted = digest, wanted + 1
    if (wanted - 1, before) != (segment.last, segment.head_hash):
        raise ValueError(f"it ends at {wanted - 1} with {before}")


def find_wrong_segments(zone_id: str, *, after: int) -> list[str]:
    """Say which rows of files do not follow each other, or are not signed after a position.

    What is in the files is found by replaying it.
    """
    problems: list[str] = []
    keys = set(MarketKey.objects.values_list("public_key", flat=True))
    end: LogSegment | None = None
    for segment in LogSegment.objects.filter(zone=zone_id).order_by("first"):
        where = f"log positions {segment.first} to {segment.last}"
        expected = 1 if end is None else end.last + 1
        if segment.first != expected or (end and segment.prev_hash != end.head_hash):
            problems.append(f"{where}: the file does not follow the one before it")
        end = segment
        if segment.last > after and not (segment.public_key in keys and segment.is_signed()):
            problems.append(f"{where}: the file's manifest is not signed by the market's key")
    rows = LogEntry.objects.filter(zone=zone_id, position__lte=end.last if end else 0)
    doubled = rows.order_by("position").values_list("position", flat=True).first()
    if doubled is not None:
        problems.append(f"log position {doubled}: it is a row and in a file")
    return problems
