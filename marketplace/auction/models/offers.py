"""Prices that bids without an amount are told before they are answered."""

from __future__ import annotations

from django.db import models

from marketplace.auction.models.bids import Bid


class PriceOffer(models.Model):
    """What became of a bid that asks for its price first, beside its own row."""

    bid_id: str

    bid = models.OneToOneField(
        Bid, on_delete=models.PROTECT, primary_key=True, related_name="price_offer"
    )
    #: The beat whose prices its owner saw.
    beat_slot = models.BigIntegerField()
    beat_part = models.PositiveSmallIntegerField()
    #: The API key that it came with, whose caps it counts for.
    api_key_id = models.CharField(max_length=40, null=True)
    #: What it was told; null: it is not priced.
    price_micros = models.BigIntegerField(null=True)
    #: Position of the price in the zone's log.
    position = models.BigIntegerField(null=True)
    #: Until then its owner may answer.
    answer_by = models.DateTimeField(null=True)
    #: The owner's answer, and when it came; null: none yet.
    takes = models.BooleanField(null=True)
    answered_at = models.DateTimeField(null=True)
    #: Why there is nothing to answer any more, as a word for programs; empty: there is, or it was
    #: answered.
    lapse = models.CharField(max_length=16, default="", blank=True)

    def __str__(self) -> str:
        return f"price of {self.bid_id}"
