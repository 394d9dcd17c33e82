"""The terms of a job as the answers about bids and jobs show them."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers as s

from marketplace.api.market.schemas import Fields
from marketplace.auction.models import Bid
from marketplace.jobs.models import Job

TERM_FIELDS: Fields = {
    "dataset_id": s.CharField(help_text="What it trains on; a job's, after a preparation."),
    "validation_dataset_id": s.CharField(
        allow_null=True, help_text="Whose rows are held out; null: a share of the data set's."
    ),
    "verified_only": s.BooleanField(help_text="On nodes of verified providers only."),
    "metadata": s.DictField(child=s.CharField(), allow_null=True, help_text="As it was sent."),
}


def serialize_terms(of: Bid | Job) -> dict[str, Any]:
    """Give the members that ``TERM_FIELDS`` describes."""
    return {
        "dataset_id": of.dataset_id,
        "validation_dataset_id": of.validation_dataset_id,
        "verified_only": of.verified_only,
        "metadata": None if of.terms is None else of.terms.metadata,
    }
