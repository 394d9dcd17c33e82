"""Data sets, jobs and what comes of them in the OpenAPI document."""

from __future__ import annotations

from copy import deepcopy

from rest_framework import serializers as s

from marketplace.api.market.bid_schemas import CELL, START
from marketplace.api.market.schemas import list_of, page_of, shape, usd_field
from marketplace.api.market.term_values import TERM_FIELDS
from marketplace.jobs.models import JobStatus

IGNORED_KEY = shape(
    "IgnoredKey",
    {
        "key": s.CharField(help_text="Empty for all further keys together."),
        "rows": s.IntegerField(help_text="Usable rows that have it."),
        "line": s.IntegerField(help_text="The first of them."),
        "hint": s.CharField(help_text="What was most likely meant; empty for plain extras."),
    },
)
UPLOAD = shape(
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
DATASET = shape(
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
        "errors": list_of(s.DictField()),
        "long_rows": s.IntegerField(help_text="Rows that the zone's model cuts."),
        "long_lines": list_of(s.IntegerField()),
        "left_out_long": s.IntegerField(help_text="Lines left out because they are too long."),
        "ignored_keys": list_of(IGNORED_KEY),
        "created_at": s.DateTimeField(),
    },
)
DATASET_PAGE = page_of("DatasetPage", DATASET)
JOB = shape(
    "Job",
    {
        "id": s.CharField(),
        "object": s.ChoiceField(["job"]),
        "bid_id": s.CharField(),
        "zone": s.CharField(),
        "name": s.CharField(),
        **deepcopy(TERM_FIELDS),
        "status": s.ChoiceField(JobStatus.values),
        "price": usd_field(),
        "deadline": s.DateTimeField(),
        "finish_planned_at": s.DateTimeField(),
        "created_at": s.DateTimeField(),
        "started_at": s.DateTimeField(allow_null=True),
        "finished_at": s.DateTimeField(allow_null=True),
        "plan": list_of(CELL),
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
JOB_PAGE = page_of("JobPage", JOB)
SAMPLES = shape(
    "Samples",
    {
        "data": list_of(
            shape(
                "Sample",
                {"prompt": s.CharField(), "before": s.CharField(), "after": s.CharField()},
            )
        )
    },
)
PREPARATION = shape(
    "Preparation",
    {
        "id": s.CharField(),
        "status": s.CharField(),
        "vendor": s.CharField(),
        "vendor_price": usd_field(),
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
        "refund": usd_field(),
        "missed": list_of(s.DictField()),
        "report": s.DictField(),
        "comparison": s.DictField(
            allow_null=True, help_text="Rows kept, changed, dropped and added, with samples."
        ),
        "accesses": list_of(s.DictField()),
    },
)
JOB_EVENT_PAGE = page_of(
    "JobEventPage",
    shape(
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
CHECKPOINT_PAGE = page_of(
    "CheckpointPage",
    shape(
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
CANCEL_PREVIEW = shape(
    "CancelPreview",
    {
        "job_id": s.CharField(),
        "can_cancel": s.BooleanField(),
        "payment": usd_field(),
        "refund": usd_field(),
        "reservation_fee": usd_field(),
    },
)
