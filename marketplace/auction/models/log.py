"""The decision log of each zone, and what is kept beside it."""

from __future__ import annotations

from typing import Any

import pgtrigger
from django.db import models
from django.db.models import F, Q

from marketplace.common.archive_files import ArchiveFile


class LogEntry(models.Model):
    """One event of a zone and its outcome. Append-only, by trigger.

    Old ones are in files (``LogSegment``); ``book.log_segments`` reads both.
    """

    zone_id: str
    # The constraint below has an index that begins with it.
    zone = models.ForeignKey(
        "fleet.Zone", on_delete=models.PROTECT, related_name="+", db_index=False
    )
    position = models.BigIntegerField()
    kind = models.CharField(max_length=32)
    #: Canonical JSON text of the engine's event: text, because ``jsonb`` does
    #: not keep how a float was written and the hash covers the bytes.
    event = models.TextField()
    #: Canonical JSON text of what the engine answered.
    outcome = models.TextField()
    prev_hash = models.CharField(max_length=64)
    hash = models.CharField(max_length=64)
    recorded_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["zone", "position"], name="auction_log_one_per_position"
            )
        ]
        triggers = [
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)
        ]

    def __str__(self) -> str:
        return f"{self.zone_id}/{self.position} {self.kind}"


class LogSegment(ArchiveFile):
    """A run of entries of a zone's log that are in a file and no longer rows; append-only.

    See ``book.log_segments``.
    """

    zone_id: str
    # The constraint below has an index that begins with it.
    zone = models.ForeignKey(
        "fleet.Zone", on_delete=models.PROTECT, related_name="+", db_index=False
    )
    #: Positions of its first and its last entry, whose head the market signed.
    first = models.BigIntegerField()
    last = models.BigIntegerField()
    #: What the first entry builds on, and the hash of the last one.
    prev_hash = models.CharField(max_length=64)
    head_hash = models.CharField(max_length=64)
    #: When its first and its last entry were written.
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField()

    #: Part of the signed text, so that no signature made for something else is one of a segment.
    FORMAT = "finetender-log-segment-1"

    class Meta(ArchiveFile.Meta):
        constraints = [
            models.UniqueConstraint(fields=["zone", "first"], name="auction_segment_once"),
            models.CheckConstraint(
                condition=Q(first__gte=1, last__gte=F("first")), name="auction_segment_has_entries"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.zone_id}/{self.first}-{self.last}"

    def describe_entries(self) -> dict[str, Any]:
        """Say which entries the file has: its first line."""
        return {
            "format": self.FORMAT,
            "zone": self.zone_id,
            "first": self.first,
            "last": self.last,
            "prev_hash": self.prev_hash,
            "head_hash": self.head_hash,
        }

    def describe_content(self) -> dict[str, Any]:
        return self.describe_entries() | {
            "began_at": self.began_at.isoformat(),
            "ended_at": self.ended_at.isoformat(),
        }


class MarketHead(models.Model):
    """How far the log of a zone is; changed only by its lane, once per batch."""

    zone_id: str
    zone = models.OneToOneField(
        "fleet.Zone", primary_key=True, on_delete=models.PROTECT, related_name="+"
    )
    #: Of the last entry of the log, which counts from 1.
    position = models.BigIntegerField(default=0)
    head_hash = models.CharField(max_length=64)
    #: Of the last event on the stream ``market.<zone name>``.
    seq = models.BigIntegerField(default=0)
    #: Latest slot the log knows.
    slot = models.BigIntegerField()
    #: Position of the state that the latest beat left to the next one's prices; 0: none yet.
    beat_position = models.BigIntegerField(default=0)
    updated_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.zone_id}@{self.position}"


class Snapshot(models.Model):
    """The engine's state at a position of the log; the one at 0 holds the zone's rules."""

    zone_id: str
    zone = models.ForeignKey("fleet.Zone", on_delete=models.PROTECT, related_name="+")
    #: Of the last entry applied; 0 before the first.
    position = models.BigIntegerField()
    head_hash = models.CharField(max_length=64)
    #: JSON text, exact floats.
    state = models.TextField()
    taken_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["zone", "position"], name="auction_snapshot_one_per_position"
            )
        ]

    def __str__(self) -> str:
        return f"{self.zone_id}@{self.position}"


class LogCheck(models.Model):
    """How far a zone's log was verified, signed: the next check begins there."""

    zone_id: str
    zone = models.OneToOneField(
        "fleet.Zone", primary_key=True, on_delete=models.PROTECT, related_name="+"
    )
    #: Of the last entry that was verified.
    position = models.BigIntegerField()
    head_hash = models.CharField(max_length=64)
    #: JSON text of the engine's state there, which the replay came to.
    state = models.TextField()
    #: JSON text of what else the check goes on with, ``log_checks.VerifiedState``.
    carried = models.TextField()
    checked_at = models.DateTimeField()
    #: Of the market's key, in hex; the signature covers all of the above.
    public_key = models.CharField(max_length=64)
    signature = models.CharField(max_length=128)

    def __str__(self) -> str:
        return f"{self.zone_id}@{self.position}"
