"""Moving old entries of zones' logs into files: each is a row or in a file, at every moment.

What may go is verified, of a closed month, older than any forecast reads, and about nothing that
is still to be settled. A file is stored, made to last, read back and compared; only then one
transaction compares the rows with it once more, adds its row of ``LogSegment`` and deletes them. A
run that is killed leaves a file that no row names, or nothing; the next one begins where the last
file ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pgtrigger
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, Value
from django.db.models.functions import Concat, Length

from marketplace.auction.book.engine_cache import LogRow
from marketplace.auction.book.log_checks import find_verified_state, store_verified_state
from marketplace.auction.book.log_segments import (
    find_first_row,
    find_last_segment,
    pack_rows,
    read_segment,
)
from marketplace.auction.book.snapshot_store import KEPT as SNAPSHOTS_KEPT
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.models import (
    Bid,
    LogEntry,
    LogSegment,
    MarketHead,
    Pricing,
    PublishedHead,
    ResultDispute,
    Snapshot,
)
from marketplace.auction.models.bids import HOLD_PREFIX
from marketplace.auction.models.disputes import DISPUTABLE_FOR
from marketplace.auction.witnesses.keys import SigningKey
from marketplace.common.errors import Conflict
from marketplace.common.locks import advisory_session_lock
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Job
from marketplace.payments.closed_months import list_closed_months
from marketplace.payments.models import Earning, Hold, HoldStatus
from scheduler.public_log.canonical_json import parse_json
from scheduler.public_log.entries import hash_entry
from scheduler.public_log.heads import has_valid_signature, signed_head_from_json

#: A forecast looks back at 28 days at most (``fleet.policy_settings``), beside the horizon.
READ_FOR = timedelta(days=35)
#: Entries of one file, unless no head was signed for so many: a proof reads all of it.
ENTRIES_OF_SEGMENT = 5000
#: Characters of their events and outcomes: one with solved prices may have some hundred thousand.
CHARS_OF_SEGMENT = 16_000_000
_LOCK = "auction.archive"


@dataclass(frozen=True, slots=True)
class ArchivedLog:
    """What one run did to a zone's log."""

    segments: int = 0
    entries: int = 0
    bytes: int = 0
    #: Why nothing more could go, as a sentence.
    until: str = ""


def archive_log(*, zone: Zone, key: SigningKey, now: datetime) -> ArchivedLog:
    """Move what may go of a zone's log into files; call as the owner of the tables, outside of
    transactions.

    Raises
    ------
    Conflict
        ``archiving``: another run is at work. ``log_differs``: the log does not verify.
        ``archive_failed``: the storage did not keep what it was given, or the rows changed.
    """
    with advisory_session_lock(_LOCK, zone.pk, wait=False) as alone:
        if not alone:
            raise Conflict("archiving", f"{zone.name} is being archived already.")
        until, why = _find_end(zone, key=key, now=now)
        done = ArchivedLog(until=why)
        while (segment := _archive_next(zone, until=until, key=key, now=now)) is not None:
            done = ArchivedLog(
                segments=done.segments + 1,
                entries=done.entries + 1 + segment.last - segment.first,
                bytes=done.bytes + segment.bytes,
                until=why,
            )
        return done


def _find_end(zone: Zone, *, key: SigningKey, now: datetime) -> tuple[int, str]:
    """The last position that may go, and what keeps the next one."""
    verified = _verify(zone, key=key, now=now)
    return min(
        (verified, "What came later is not verified."),
        *_list_ends(zone, first=find_first_row(zone.pk), now=now),
    )


def _verify(zone: Zone, *, key: SigningKey, now: datetime) -> int:
    """Verify what came since the last check; the position up to which all was."""
    since = find_verified_state(zone=zone, key=key)
    found = verify_zone(zone, since=since)
    if not found.ok:
        raise Conflict("log_differs", f"The log of {zone.name} does not verify: {found.problems}.")
    if found.state is None:
        return 0
    return store_verified_state(zone=zone, found=found, key=key, now=now).position


def _list_ends(zone: Zone, *, first: int, now: datetime) -> Iterator[tuple[int, str]]:
    months = list_closed_months()
    closed = months[0].ends_at if months else None
    horizon = timedelta(seconds=zone.slot_s * zone.horizon_slots)
    before = min(now - READ_FOR - horizon, closed or now)
    later = LogEntry.objects.filter(zone=zone, position__gte=first, recorded_at__gte=before)
    begins = later.order_by("position").values_list("position", flat=True).first()
    if closed is None:
        yield 0, "No month is closed."
    elif begins is not None:
        yield begins - 1, f"What came from {before:%Y-%m-%d} on is of an open month or recent."
    # The last of those that are kept in case later ones cannot be read.
    snapshots = Snapshot.objects.filter(zone=zone).order_by("-position")
    kept = list(snapshots.values_list("position", flat=True)[:SNAPSHOTS_KEPT])
    yield min(kept, default=0), "A restart may replay what came after an earlier snapshot."
    solved = Pricing.objects.filter(zone=zone).values_list("applied_position", flat=True).first()
    if solved is not None:
        yield solved - 1, "The prices in force were solved there."
    head = MarketHead.objects.filter(zone=zone).first()
    yield (head.position if head else 1) - 1, "The log's last entry stays."
    if head is not None and head.beat_position:
        yield head.beat_position - 1, "The next prices are solved from the latest beat."
    unsettled = _find_unsettled(zone, first=first, now=now)
    if unsettled is not None:
        yield unsettled.position - 1, f"The bid {unsettled.pk} is not settled for good."


def _find_unsettled(zone: Zone, *, first: int, now: datetime) -> Any:
    """The first bid, from a position on, of which money or a dispute is open or may come."""
    reference = Concat(Value(HOLD_PREFIX), OuterRef("pk"))
    in_clearing = Q(status=HoldStatus.CHARGED, distributed_at=None) & ~Q(
        charged_micros=F("refunded_micros") + F("vendor_micros")
    )
    hold = Hold.objects.filter(Q(status=HoldStatus.HELD) | in_clearing, reference=reference)
    pay = Earning.objects.filter(reference=reference, matured_at=None, returned_at=None)
    settled_lately = Q(settled_at=None) | Q(settled_at__gt=now - DISPUTABLE_FOR)
    job = Job.objects.filter(settled_lately, bid_id=OuterRef("pk"))
    dispute = ResultDispute.objects.filter(bid=OuterRef("pk"), decided_at=None)
    bids = Bid.objects.filter(zone=zone, position__gte=first).order_by("position")
    is_open = Exists(hold) | Exists(pay) | Exists(job) | Exists(dispute)
    return bids.filter(is_open | Q(rent_due_micros__isnull=False)).first()


def _archive_next(zone: Zone, *, until: int, key: SigningKey, now: datetime) -> LogSegment | None:
    """Move the next entries that end at a signed head; ``None`` where there are no more."""
    before = find_last_segment(zone.pk)
    first = 1 if before is None else before.last + 1
    last = _find_signed_end(zone, first=first, until=until)
    if last is None:
        return None
    rows = _read_rows(zone, first=first, last=last)
    prev_hash = rows[0].prev_hash
    if before is not None and prev_hash != before.head_hash:
        raise Conflict("archive_failed", f"Entry {first} does not follow the archived ones.")
    _check_chain(rows, first=first, last=last)
    segment = LogSegment(
        zone=zone,
        first=first,
        last=last,
        prev_hash=prev_hash,
        head_hash=rows[-1].hash,
        began_at=rows[0].recorded_at,
        ended_at=rows[-1].recorded_at,
        archived_at=now,
        public_key=key.public_key,
    )
    _store(segment, rows, key=key)
    _replace_rows(segment, rows)
    return segment


def _find_signed_end(zone: Zone, *, first: int, until: int) -> int | None:
    """Where the next file ends: a head that was signed, best of no more than a file holds."""
    heads = PublishedHead.objects.filter(zone=zone, position__range=(first, until))
    full = _find_full(zone, first=first)
    near = heads.filter(position__lt=full).order_by("-position").first()
    head = near or heads.order_by("position").first()
    if head is None:
        return None
    signed = signed_head_from_json(json.loads(head.text))
    rows = LogEntry.objects.filter(zone=zone, position=head.position)
    if not has_valid_signature(signed) or not rows.filter(hash=signed.head.hash).exists():
        raise Conflict("archive_failed", f"The head at {head.position} is not the log's.")
    return head.position


def _find_full(zone: Zone, *, first: int) -> int:
    """The first position, from another on, that one file has no room for."""
    end = first + ENTRIES_OF_SEGMENT
    entries = LogEntry.objects.filter(zone=zone, position__gte=first, position__lt=end)
    sized = entries.order_by("position").annotate(chars=Length("event") + Length("outcome"))
    room = CHARS_OF_SEGMENT
    for position, chars in sized.values_list("position", "chars"):
        room -= chars
        if room < 0:
            return position
    return end


def _read_rows(zone: Zone, *, first: int, last: int) -> list[LogRow]:
    entries = LogEntry.objects.filter(zone=zone, position__range=(first, last))
    columns = entries.order_by("position").values_list(*LogRow._fields)
    return list(map(LogRow._make, columns))


def _check_chain(rows: Sequence[LogRow], *, first: int, last: int) -> None:
    """Compute every hash again: nothing goes into a file that does not follow from it."""
    before = rows[0].prev_hash
    for wanted, row in zip(range(first, last + 1), rows, strict=True):
        found = hash_entry(
            position=wanted,
            event=parse_json(row.event),
            outcome=parse_json(row.outcome),
            prev_hash=before,
        )
        if (row.position, row.prev_hash, row.hash) != (wanted, before, found):
            raise Conflict("archive_failed", f"Entry {wanted} is not what its hash says.")
        before = found


def _store(segment: LogSegment, rows: list[LogRow], *, key: SigningKey) -> None:
    """Store a segment's file and its manifest, and read the file back as every reader will.

    A storage that lost or changed anything raises; nothing is deleted then.
    """
    content = pack_rows(segment.describe_entries(), rows)
    place = f"archive/log/{segment.zone_id}/{segment.first:012d}-{segment.last:012d}-"
    segment.store(content, place=place, sign=key.sign)
    if list(read_segment(segment)) != rows:
        raise Conflict("archive_failed", f"The storage has {segment.file.name} otherwise.")
    segment.check_manifest()


def _replace_rows(segment: LogSegment, rows: list[LogRow]) -> None:
    """Let the file take the place of the rows.

    What was stored is not deleted where this fails: a commit whose answer was lost may have been
    one, and a file that no row names harms nobody.
    """
    with pgtrigger.ignore("auction.LogEntry:append_only"), transaction.atomic():
        segment.save(force_insert=True)
        if _read_rows(segment.zone, first=segment.first, last=segment.last) != rows:
            raise Conflict("archive_failed", "The log's rows changed while they were archived.")
        entries = LogEntry.objects.filter(
            zone=segment.zone, position__range=(segment.first, segment.last)
        )
        deleted, _ = entries.delete()
        if deleted != len(rows):
            raise Conflict("archive_failed", f"{deleted} of {len(rows)} rows were deleted.")
