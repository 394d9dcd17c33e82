"""Owners' disputes of results."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db import models

from marketplace.auction.models.bids import Bid
from marketplace.common.models import IdField

#: How long after its settlement a result can be disputed; its pay matures no earlier.
DISPUTABLE_FOR = timedelta(days=3)


class ResultDispute(models.Model):
    """An owner's claim that a result is not what was trained, and what became of it.

    Another provider's node measures the result; where its answer settles nothing, an operator
    decides.
    """

    bid_id: str

    id = IdField(prefix="rdispute")
    bid = models.OneToOneField(Bid, on_delete=models.PROTECT, related_name="dispute")
    reason = models.CharField(max_length=1000)
    opened_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+"
    )
    opened_at = models.DateTimeField()
    #: Who decided; null: another node's measure did.
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    decided_at = models.DateTimeField(null=True, blank=True)
    #: Who was right; null while open.
    is_for_owner = models.BooleanField(null=True, blank=True)
    #: Why, to both sides.
    words = models.CharField(max_length=1000, default="", blank=True)

    class Meta:
        indexes = [
            models.Index(
                name="auction_disputes_open",
                fields=["opened_at"],
                condition=models.Q(decided_at__isnull=True),
            )
        ]

    def __str__(self) -> str:
        return f"{self.pk} about {self.bid_id}"
