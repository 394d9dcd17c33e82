"""Signed heads of the market's logs, and who has them."""

from __future__ import annotations

import pgtrigger
from django.db import models


class MarketKey(models.Model):
    """A key that signs, or signed, heads and receipts; its private half is a file."""

    #: Ed25519, 32 bytes in hex.
    public_key = models.CharField(max_length=64, primary_key=True)
    created_at = models.DateTimeField()
    #: In use no longer; what it signed stays valid.
    retired_at = models.DateTimeField(null=True)
    #: Signature of the key before over this one, in hex; empty for the first key, and for one
    #: that was made because the key before was lost.
    vouched_by = models.CharField(max_length=128, default="", blank=True)

    def __str__(self) -> str:
        return self.public_key


class ReleaseSignature(models.Model):
    """What a key signed of a release of the node: the web server has no key and gives it out."""

    key = models.ForeignKey(MarketKey, on_delete=models.PROTECT, related_name="+", db_index=False)
    #: Of ``build_release_text`` without a serial, in hex.
    text_sha256 = models.CharField(max_length=64)
    #: Later signatures have higher ones: nodes install nothing of a lower one.
    serial = models.BigIntegerField()
    #: In hex.
    signature = models.CharField(max_length=128)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["key", "serial"], name="auction_release_signature_one_per_serial"
            )
        ]

    def __str__(self) -> str:
        return f"{self.text_sha256} by {self.key_id}"  # type: ignore[attr-defined]


class PublishedHead(models.Model):
    """A head of a zone's log, or of the ledger, as the market signed it; append-only."""

    zone_id: str | None
    #: None: of the ledger, whose positions are the numbers of its seals.
    # The constraint below has an index that begins with it.
    zone = models.ForeignKey(
        "fleet.Zone", null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    position = models.BigIntegerField()
    #: JSON text of ``scheduler.public_log.heads.SignedHead``.
    text = models.TextField()
    signed_at = models.DateTimeField()

    class Meta:
        db_table = "auction_signedhead"
        constraints = [
            models.UniqueConstraint(
                fields=["zone", "position"],
                name="auction_signed_head_one_per_position",
                nulls_distinct=False,
            )
        ]
        triggers = [
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)
        ]

    def __str__(self) -> str:
        return f"{self.zone_id}@{self.position}"


class WitnessCursor(models.Model):
    """How far a witness has a zone's signed heads, and what keeps it from having more."""

    zone_id: str | None
    #: As the settings name it.
    witness = models.CharField(max_length=500)
    #: None: the ledger.
    zone = models.ForeignKey("fleet.Zone", null=True, on_delete=models.PROTECT, related_name="+")
    #: Of the last head that it took.
    position = models.BigIntegerField(default=-1)
    delivered_at = models.DateTimeField(null=True)
    #: Tries that failed since the last that did not.
    failures = models.PositiveIntegerField(default=0)
    problem = models.CharField(max_length=500, default="", blank=True)
    #: Not tried again before.
    next_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["witness", "zone"],
                name="auction_witness_cursor_one_per_zone",
                nulls_distinct=False,
            )
        ]

    def __str__(self) -> str:
        return f"{self.witness} of {self.zone_id}@{self.position}"
