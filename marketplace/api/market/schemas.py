"""The shapes of the market's API for its OpenAPI document."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, inline_serializer
from rest_framework import serializers as s

from marketplace.api.market.requests import BatchRequest, BidRequest, BidUploadRequest
from marketplace.auction.models import BidStatus
from marketplace.jobs.models import JobStatus
from marketplace.jobs.starts import StartKind
from marketplace.warm.offers import Outlook

Fields = dict[str, Any]


def _shape(name: str, fields: Fields, *, many: bool = False, **options: Any) -> Any:
    return inline_serializer(name=name, fields=fields, many=many, **options)


def _list(item: Any, **options: Any) -> s.ListField:
    # A copy: a shape that stands in several lists would be bound to the first.
    return s.ListField(child=deepcopy(item), **options)


def _page(name: str, item: Any) -> Any:
    return inline_serializer(name=name, fields={"data": _list(item), "has_more": s.BooleanField()})


def _usd(**options: Any) -> s.CharField:
    return s.CharField(help_text="Dollars as a decimal string.", **options)


PAGE = [
    OpenApiParameter("limit", int, description="Items of the page, 1 to 100; 20 without it."),
    OpenApiParameter("after", str, description="Id of the last item of the page before."),
    OpenApiParameter("status", str, description="Only items of this status."),
]
EVENTS_PAGE = [
    OpenApiParameter("limit", int, description="Events of the page, 1 to 100; 20 without it."),
    OpenApiParameter("after", int, description="seq of the last event seen."),
]

PROBLEM_FIELDS: Fields = {
    "type": s.CharField(),
    "title": s.CharField(),
    "status": s.IntegerField(),
    "code": s.CharField(help_text="What programs compare; never changes."),
    "detail": s.CharField(help_text="What is wrong and what to do."),
    "param": s.CharField(required=False),
    "request_id": s.CharField(),
}
PROBLEM = OpenApiResponse(
    _shape("Problem", PROBLEM_FIELDS), description="RFC 9457 application/problem+json."
)

CELL = _shape(
    "Cell",
    {
        "slot": s.IntegerField(),
        "node": s.CharField(),
        "starts_at": s.DateTimeField(),
        "ends_at": s.DateTimeField(),
    },
)
PARTS = _shape(
    "PriceParts",
    {
        "vendor": _usd(),
        "operational": _usd(),
        "compute": _usd(),
        "memory": _usd(),
        "rounding": _usd(),
    },
)
WORK = _shape(
    "Work",
    {
        "samples": s.IntegerField(help_text="Training rows times epochs."),
        "units": s.IntegerField(
            help_text="Work units of all epochs and evaluations; one is about a token."
        ),
        "memory_gb": s.FloatField(),
    },
)
DECISION = _shape(
    "Decision",
    {
        "admitted": s.BooleanField(),
        "decided_at": s.DateTimeField(),
        "position": s.IntegerField(help_text="Position in the zone's log."),
        "hash": s.CharField(),
        "payment": _usd(allow_null=True),
        "price_parts": PARTS,
        "plan": _list(CELL),
        "finish_planned_at": s.DateTimeField(allow_null=True),
        "reason": s.CharField(allow_null=True),
        "reason_text": s.CharField(allow_null=True),
        "posted_price": _usd(allow_null=True),
        "earliest_deadline": s.DateTimeField(allow_null=True),
        "earliest_deadline_price": _usd(allow_null=True),
    },
)
RECEIPT = _shape(
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
    "price": _usd(),
    "deadline": s.DateTimeField(),
    "created_at": s.DateTimeField(),
    "dataset_id": s.CharField(),
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
    "refunded": _usd(),
    "credit": _usd(),
}
BID = _shape("Bid", BID_FIELDS)
BID_PAGE = _page("BidPage", BID)
REFUSED = OpenApiResponse(
    _shape(
        "RefusedBid",
        PROBLEM_FIELDS
        | {
            "reason": s.CharField(required=False),
            "posted_price": _usd(required=False, allow_null=True),
            "earliest_deadline": s.DateTimeField(required=False, allow_null=True),
            "earliest_deadline_price": _usd(required=False, allow_null=True),
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
BATCH = _shape(
    "BidBatch",
    {
        "data": s.ListField(
            child=_shape("BidBatchItem", {"status": s.IntegerField(), "body": s.DictField()})
        )
    },
)
CURVE_POINT = _shape(
    "CurvePoint",
    {"deadline": s.DateTimeField(), "price": _usd(), "finish_at": s.DateTimeField()},
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
    "price": _usd(),
    "deadline": s.DateTimeField(),
    "created_at": s.DateTimeField(),
    "sweep": s.DictField(),
    "payment": _usd(),
    "reason": s.CharField(allow_null=True, help_text="Why all lost; as of a bid."),
    "posted_price": _usd(allow_null=True),
    "position": s.IntegerField(allow_null=True, help_text="Of its own entry in the log."),
    "bids": _list(BID),
}
BUNDLE = _shape("Bundle", BUNDLE_FIELDS)
REFUSED_BUNDLE = OpenApiResponse(
    _shape("RefusedBundle", PROBLEM_FIELDS | {"bundle": BUNDLE}),
    description="Refused by the auction, or the wallet has less than the price.",
)
BUNDLE_QUOTE = _shape(
    "SweepQuote",
    {
        "object": s.ChoiceField(["bundle_quote"]),
        "zone": s.CharField(),
        "deadline": s.DateTimeField(),
        "posted_price": _usd(allow_null=True),
        "jobs": s.ListField(
            child=_shape(
                "QuotedJob",
                {
                    "label": s.CharField(),
                    "posted_price": _usd(allow_null=True),
                    "finish_at": s.DateTimeField(allow_null=True),
                    "work": WORK,
                },
            )
        ),
        "finish_at": s.DateTimeField(allow_null=True),
        "reason": s.CharField(allow_null=True),
        "reason_text": s.CharField(allow_null=True),
        "curve": _list(CURVE_POINT),
        "expires_at": s.DateTimeField(),
        "position": s.IntegerField(),
        "head_hash": s.CharField(),
    },
)
QUOTE = _shape(
    "Quote",
    {
        "object": s.ChoiceField(["quote"]),
        "zone": s.CharField(),
        "deadline": s.DateTimeField(),
        "posted_price": _usd(allow_null=True),
        "price_parts": PARTS,
        "plan": _list(CELL),
        "finish_at": s.DateTimeField(allow_null=True),
        "reason": s.CharField(allow_null=True),
        "reason_text": s.CharField(allow_null=True),
        "curve": _list(CURVE_POINT),
        "adapter": s.DictField(),
        "training": s.DictField(),
        "resolved": _list(s.CharField()),
        "choices": s.DictField(child=s.CharField()),
        "start": deepcopy(START),
        "warm_start": _shape(
            "WarmStart",
            {
                "outlook": s.ChoiceField([str(outlook) for outlook in Outlook]),
                "model": s.CharField(allow_null=True, help_text="What to bid with."),
                "cold_price": _usd(allow_null=True),
            },
        ),
        "work": WORK,
        "expires_at": s.DateTimeField(),
        "position": s.IntegerField(),
        "head_hash": s.CharField(),
        "vendor": _shape(
            "QuotedVendor",
            {
                "id": s.CharField(),
                "name": s.CharField(),
                "price": _usd(),
                "ready_at": s.DateTimeField(),
            },
            allow_null=True,
        ),
    },
)
ZONE = _shape(
    "Zone",
    {
        "name": s.CharField(),
        "base_model": s.CharField(),
        "slot_s": s.IntegerField(),
        "horizon_slots": s.IntegerField(),
        "policy": s.CharField(),
        "max_sequence_length": s.IntegerField(),
        "earliest_deadline": s.DateTimeField(),
        "latest_deadline": s.DateTimeField(),
        "nodes_on_sale": s.IntegerField(),
    },
)
ZONE_LIST = _shape("ZoneList", {"data": _list(ZONE)})
MARKET = _shape(
    "Market",
    {
        "zone": s.CharField(),
        "seq": s.IntegerField(),
        "position": s.IntegerField(),
        "head_hash": s.CharField(),
        "slot": s.IntegerField(),
        "slot_s": s.IntegerField(),
        "first_slot": s.IntegerField(),
        "first_slot_at": s.DateTimeField(),
        "nodes": _list(s.DictField()),
        "decisions": _list(s.DictField()),
    },
)
IGNORED_KEY = _shape(
    "IgnoredKey",
    {
        "key": s.CharField(help_text="Empty for all further keys together."),
        "rows": s.IntegerField(help_text="Usable rows that have it."),
        "line": s.IntegerField(help_text="The first of them."),
        "hint": s.CharField(help_text="What was most likely meant; empty for plain extras."),
    },
)
UPLOAD = _shape(
    "Upload",
    {
        "id": s.CharField(),
        "object": s.ChoiceField(["upload"]),
        "name": s.CharField(),
        "bytes": s.IntegerField(),
        "sha256": s.CharField(),
        "status": s.ChoiceField(["waiting", "reading", "undecided", "refused", "stored"]),
        "rows_read": s.IntegerField(),
        "share_read": s.FloatField(help_text="Of the file, from 0 to 1."),
        "dataset_id": s.CharField(allow_null=True),
        "error": s.DictField(allow_null=True),
        "created_at": s.DateTimeField(),
    },
)
DATASET = _shape(
    "Dataset",
    {
        "id": s.CharField(),
        "object": s.ChoiceField(["dataset"]),
        "name": s.CharField(),
        "bytes": s.IntegerField(),
        "sha256": s.CharField(),
        "format": s.CharField(),
        "rows": s.IntegerField(help_text="Usable rows."),
        "tokens": s.IntegerField(),
        "longest_row_tokens": s.IntegerField(),
        "needs_preparation": s.BooleanField(
            help_text="Nothing trains on it as it is; rows are those that a program can repair."
        ),
        "faulty": s.IntegerField(),
        "errors": _list(s.DictField()),
        "long_rows": s.IntegerField(help_text="Rows that the zone's model cuts."),
        "long_lines": _list(s.IntegerField()),
        "left_out_long": s.IntegerField(help_text="Lines left out because they are too long."),
        "ignored_keys": _list(IGNORED_KEY),
        "created_at": s.DateTimeField(),
    },
)
DATASET_PAGE = _page("DatasetPage", DATASET)
JOB = _shape(
    "Job",
    {
        "id": s.CharField(),
        "object": s.ChoiceField(["job"]),
        "bid_id": s.CharField(),
        "zone": s.CharField(),
        "name": s.CharField(),
        "status": s.ChoiceField(JobStatus.values),
        "price": _usd(),
        "deadline": s.DateTimeField(),
        "finish_planned_at": s.DateTimeField(),
        "created_at": s.DateTimeField(),
        "started_at": s.DateTimeField(allow_null=True),
        "finished_at": s.DateTimeField(allow_null=True),
        "plan": _list(CELL),
        "progress": s.DictField(),
        "fault": s.CharField(allow_null=True),
        "failure_reason": s.CharField(allow_null=True),
        "start": deepcopy(START),
        "stopped_early": s.BooleanField(help_text="It ended before its last step."),
        "best_step": s.IntegerField(
            allow_null=True, help_text="Step whose weights early stopping chose."
        ),
        "seq": s.IntegerField(),
    },
)
JOB_PAGE = _page("JobPage", JOB)
SAMPLES = _shape(
    "Samples",
    {
        "data": _list(
            _shape(
                "Sample",
                {"prompt": s.CharField(), "before": s.CharField(), "after": s.CharField()},
            )
        )
    },
)
PREPARATION = _shape(
    "Preparation",
    {
        "id": s.CharField(),
        "status": s.CharField(),
        "vendor": s.CharField(),
        "vendor_price": _usd(),
        "due_at": s.DateTimeField(),
        "delivered_at": s.DateTimeField(allow_null=True),
        "accept_by": s.DateTimeField(
            allow_null=True, help_text="Until then the delivery may be refused."
        ),
        "accepted_at": s.DateTimeField(allow_null=True),
        "concluded_at": s.DateTimeField(
            allow_null=True, help_text="When the vendor was paid and spare cells were given back."
        ),
        "rows_in": s.IntegerField(allow_null=True),
        "rows_out": s.IntegerField(allow_null=True),
        "rows_held_out": s.IntegerField(allow_null=True),
        "source_dataset_id": s.CharField(),
        "prepared_dataset_id": s.CharField(allow_null=True),
        "held_out_dataset_id": s.CharField(allow_null=True),
        "refund": _usd(),
        "missed": _list(s.DictField()),
        "report": s.DictField(),
        "comparison": s.DictField(
            allow_null=True, help_text="Rows kept, changed, dropped and added, with samples."
        ),
        "accesses": _list(s.DictField()),
    },
)
JOB_EVENT_PAGE = _page(
    "JobEventPage",
    _shape(
        "JobEvent",
        {
            "seq": s.IntegerField(),
            "at": s.DateTimeField(),
            "kind": s.CharField(),
            "actor": s.CharField(),
            "message": s.CharField(),
            "data": s.DictField(),
        },
    ),
)
CHECKPOINT_PAGE = _page(
    "CheckpointPage",
    _shape(
        "Checkpoint",
        {
            "id": s.CharField(),
            "step": s.IntegerField(),
            "bytes": s.IntegerField(),
            "sha256": s.CharField(),
            "train_loss": s.FloatField(allow_null=True),
            "valid_loss": s.FloatField(allow_null=True),
            "created_at": s.DateTimeField(),
        },
    ),
)
CANCEL_PREVIEW = _shape(
    "CancelPreview",
    {
        "job_id": s.CharField(),
        "can_cancel": s.BooleanField(),
        "payment": _usd(),
        "refund": _usd(),
    },
)

EXPRESS_QUOTE = _shape(
    "ExpressQuote",
    {
        "zone": s.CharField(),
        "least_slo_s": s.FloatField(help_text="The shortest SLO that an idle seat keeps."),
        "longest_slo_s": s.FloatField(),
        "prices": _shape("ExpressPrice", {"slo_s": s.FloatField(), "price": _usd()}, many=True),
    },
)
EXPRESS_ANSWER = _shape(
    "ExpressAnswer",
    {
        "id": s.CharField(),
        "object": s.ChoiceField(["express_request"]),
        "status": s.ChoiceField(["pending", "admitted", "offered", "refused"]),
        "zone": s.CharField(),
        "dataset_id": s.CharField(),
        "name": s.CharField(),
        "slo_s": s.FloatField(help_text="As asked for."),
        "adapter": s.DictField(),
        "training": s.DictField(),
        "created_at": s.DateTimeField(),
        "answered_at": s.DateTimeField(allow_null=True),
        "certified_slo_s": s.FloatField(
            allow_null=True, help_text="Certified, or of an offer: what could be."
        ),
        "due_at": s.DateTimeField(allow_null=True),
        "price": _usd(allow_null=True),
        "least_slo_s": s.FloatField(allow_null=True),
        "reason": s.CharField(allow_null=True),
        "position": s.IntegerField(allow_null=True, help_text="Of the answer in the zone's log."),
        "decision_hash": s.CharField(allow_null=True),
        "bid_id": s.CharField(allow_null=True),
        "job_id": s.CharField(allow_null=True),
        "lookup": _shape(
            "ExpressLookup",
            {
                "candidates": s.IntegerField(),
                "seconds": s.FloatField(),
                "own_loss": s.FloatField(help_text="With the prompt asked for."),
                "loss": s.FloatField(help_text="With the prompt that the job began with."),
                "is_from_bank": s.BooleanField(),
            },
            allow_null=True,
        ),
    },
)
