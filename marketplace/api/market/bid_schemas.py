"""Bids, bundles and their quotes in the OpenAPI document."""

from __future__ import annotations

from copy import deepcopy

from drf_spectacular.utils import OpenApiResponse, inline_serializer
from rest_framework import serializers as s

from marketplace.api.market.requests import BatchRequest, BidRequest, BidUploadRequest
from marketplace.api.market.schemas import (
    PROBLEM,
    PROBLEM_FIELDS,
    Fields,
    list_of,
    page_of,
    shape,
    usd_field,
)
from marketplace.api.market.term_values import TERM_FIELDS
from marketplace.auction.models import BidStatus
from marketplace.warm.offers import Outlook
from workers.protocol.starts import StartKind

CELL = shape(
    "Cell",
    {
        "slot": s.IntegerField(),
        "node": s.CharField(),
        "starts_at": s.DateTimeField(),
        "ends_at": s.DateTimeField(),
    },
)
PARTS = shape(
    "PriceParts",
    {
        "vendor": usd_field(),
        "operational": usd_field(),
        "compute": usd_field(),
        "memory": usd_field(),
        "rounding": usd_field(),
        "fee": usd_field(),
        "card": usd_field(),
        "tax": usd_field(),
    },
)
WORK = shape(
    "Work",
    {
        "samples": s.IntegerField(help_text="Training rows times epochs."),
        "units": s.IntegerField(
            help_text="Work units of all epochs and evaluations; one is about a token."
        ),
        "memory_gb": s.FloatField(),
    },
)
DECISION = shape(
    "Decision",
    {
        "admitted": s.BooleanField(),
        "decided_at": s.DateTimeField(),
        "position": s.IntegerField(help_text="Position in the zone's log."),
        "hash": s.CharField(),
        "payment": usd_field(allow_null=True),
        "price_parts": PARTS,
        "plan": list_of(CELL),
        "finish_planned_at": s.DateTimeField(allow_null=True),
        "reason": s.CharField(allow_null=True),
        "code": s.CharField(allow_null=True, help_text="That of a 402 for this reason."),
        "reason_text": s.CharField(allow_null=True),
        "posted_price": usd_field(allow_null=True),
        "earliest_deadline": s.DateTimeField(allow_null=True),
        "earliest_deadline_price": usd_field(allow_null=True),
    },
)
RECEIPT = shape(
    "Receipt",
    {
        "format": s.CharField(),
        "zone": s.CharField(),
        "position": s.IntegerField(help_text="Of the entry that received the bid."),
        "hash": s.CharField(help_text="Of that entry, and so of the log up to it."),
        "signed_at": s.DateTimeField(),
        "public_key": s.CharField(help_text="Listed at /.well-known/finetender-keys.json."),
        "bid_id": s.CharField(),
        "sealed": s.CharField(help_text="SHA-256 of the bid's published part."),
        "signature": s.CharField(help_text="Ed25519, over the other members."),
    },
)
START = inline_serializer(
    name="Start",
    fields={
        "kind": s.ChoiceField([str(kind) for kind in StartKind]),
        "model": s.CharField(allow_null=True, help_text="'ft:' and the id of one of your jobs."),
    },
    allow_null=True,
)
BID_FIELDS: Fields = {
    "id": s.CharField(),
    "object": s.ChoiceField(["bid"]),
    "zone": s.CharField(),
    "name": s.CharField(),
    "status": s.ChoiceField(BidStatus.values),
    "price": usd_field(),
    "deadline": s.DateTimeField(),
    "created_at": s.DateTimeField(),
    **deepcopy(TERM_FIELDS),
    "adapter": s.DictField(),
    "training": s.DictField(),
    "resolved": s.ListField(
        child=s.CharField(), help_text="Settings that were 'auto' or left out."
    ),
    "choices": s.DictField(
        child=s.CharField(), help_text="What was chosen for each of them, and why."
    ),
    "start": deepcopy(START),
    "work": WORK,
    "receipt": RECEIPT,
    "decision": DECISION,
    "job_id": s.CharField(allow_null=True),
    "bundle_id": s.CharField(allow_null=True, help_text="The bundle it was placed with."),
    "reservation_fee_percent": s.IntegerField(
        help_text="Of the price of a job that its owner ends, what is kept at least, percent."
    ),
    "refunded": usd_field(),
    "credit": usd_field(),
}
BID = shape("Bid", BID_FIELDS)
BID_PAGE = page_of("BidPage", BID)
REFUSED = OpenApiResponse(
    shape(
        "RefusedBid",
        PROBLEM_FIELDS
        | {
            "reason": s.CharField(required=False),
            "posted_price": usd_field(required=False, allow_null=True),
            "earliest_deadline": s.DateTimeField(required=False, allow_null=True),
            "earliest_deadline_price": usd_field(required=False, allow_null=True),
            "bid": BID,
        },
    ),
    description="Refused by the auction (bid_below_price, no_capacity, no_window, no_memory), or "
    "the wallet has less than the price (insufficient_funds).",
)
BID_REQUEST = {"application/json": BidRequest, "multipart/form-data": BidUploadRequest}
BID_RESPONSES = {
    201: OpenApiResponse(BID, description="Admitted."),
    202: OpenApiResponse(BID, description="Not decided yet; look at Location."),
    400: PROBLEM,
    401: PROBLEM,
    402: REFUSED,
    409: PROBLEM,
}
BATCH_REQUEST = BatchRequest
BATCH = shape(
    "BidBatch",
    {
        "data": s.ListField(
            child=shape("BidBatchItem", {"status": s.IntegerField(), "body": s.DictField()})
        )
    },
)
CURVE_POINT = shape(
    "CurvePoint",
    {"deadline": s.DateTimeField(), "price": usd_field(), "finish_at": s.DateTimeField()},
)
BUNDLE_FIELDS: Fields = {
    "id": s.CharField(),
    "object": s.ChoiceField(["bundle"]),
    "zone": s.CharField(),
    "name": s.CharField(),
    "status": s.ChoiceField(
        BidStatus.values, help_text="pending while any bid is; admitted where any bid was."
    ),
    "all_or_none": s.BooleanField(),
    "price": usd_field(),
    "deadline": s.DateTimeField(),
    "created_at": s.DateTimeField(),
    "sweep": s.DictField(),
    "payment": usd_field(),
    "reason": s.CharField(allow_null=True, help_text="Why all lost; as of a bid."),
    "posted_price": usd_field(allow_null=True),
    "position": s.IntegerField(allow_null=True, help_text="Of its own entry in the log."),
    "bids": list_of(BID),
}
BUNDLE = shape("Bundle", BUNDLE_FIELDS)
REFUSED_BUNDLE = OpenApiResponse(
    shape("RefusedBundle", PROBLEM_FIELDS | {"bundle": BUNDLE}),
    description="Refused by the auction, or the wallet has less than the price.",
)
BUNDLE_QUOTE = shape(
    "SweepQuote",
    {
        "object": s.ChoiceField(["bundle_quote"]),
        "zone": s.CharField(),
        "deadline": s.DateTimeField(),
        "posted_price": usd_field(allow_null=True),
        "jobs": s.ListField(
            child=shape(
                "QuotedJob",
                {
                    "label": s.CharField(),
                    "posted_price": usd_field(allow_null=True),
                    "finish_at": s.DateTimeField(allow_null=True),
                    "work": WORK,
                },
            )
        ),
        "finish_at": s.DateTimeField(allow_null=True),
        "reason": s.CharField(allow_null=True),
        "reason_text": s.CharField(allow_null=True),
        "curve": list_of(CURVE_POINT),
        "expires_at": s.DateTimeField(),
        "position": s.IntegerField(),
        "head_hash": s.CharField(),
    },
)
QUOTE = shape(
    "Quote",
    {
        "object": s.ChoiceField(["quote"]),
        "zone": s.CharField(),
        "deadline": s.DateTimeField(),
        "posted_price": usd_field(allow_null=True),
        "price_parts": PARTS,
        "plan": list_of(CELL),
        "finish_at": s.DateTimeField(allow_null=True),
        "reason": s.CharField(allow_null=True),
        "reason_text": s.CharField(allow_null=True),
        "curve": list_of(CURVE_POINT),
        "verified_only": s.BooleanField(help_text="On nodes of verified providers only."),
        "adapter": s.DictField(),
        "training": s.DictField(),
        "resolved": list_of(s.CharField()),
        "choices": s.DictField(child=s.CharField()),
        "start": deepcopy(START),
        "warm_start": shape(
            "WarmStart",
            {
                "outlook": s.ChoiceField([str(outlook) for outlook in Outlook]),
                "model": s.CharField(allow_null=True, help_text="What to bid with."),
                "cold_price": usd_field(allow_null=True),
            },
        ),
        "work": WORK,
        "expires_at": s.DateTimeField(),
        "position": s.IntegerField(),
        "head_hash": s.CharField(),
        "vendor": shape(
            "QuotedVendor",
            {
                "id": s.CharField(),
                "name": s.CharField(),
                "price": usd_field(),
                "ready_at": s.DateTimeField(),
            },
            allow_null=True,
        ),
    },
)
