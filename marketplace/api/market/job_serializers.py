"""What the market's API answers with about data sets, preparations, jobs and their results."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers as s

from marketplace.api.answers import Answer, AsStored, Constant, Moment, NullText, Usd, moment
from marketplace.api.market.bid_serializers import (
    CellSerializer,
    PlannedCell,
    StartSerializer,
    TermsAnswer,
)
from marketplace.jobs.journal import serialize_progress
from marketplace.jobs.models import Dataset, Job, JobStatus, Upload
from marketplace.vendors.models import DataPlan, Preparation
from marketplace.vendors.selectors import list_accesses

#: Faulty lines of a data set in one answer; its page has all of them.
ERRORS_SHOWN = 50


class IgnoredKeySerializer(AsStored):
    key = s.CharField(help_text="Empty for all further keys together.")
    rows = s.IntegerField(help_text="Usable rows that have it.")
    line = s.IntegerField(help_text="The first of them.")
    hint = s.CharField(help_text="What was most likely meant; empty for plain extras.")


class UploadSerializer(Answer):
    id = s.CharField()
    object = Constant("upload")
    name = s.CharField()
    bytes = s.IntegerField()
    sha256 = s.CharField()
    status = s.ChoiceField(["waiting", "reading", "undecided", "refused", "stored"])
    rows_read = s.IntegerField()
    share_read = s.FloatField(help_text="Of the file, from 0 to 1.")
    dataset_id = s.CharField(allow_null=True)
    error = s.DictField(allow_null=True)
    created_at = Moment()

    def get_error(self, upload: Upload) -> dict[str, Any] | None:
        error = upload.error
        return {"code": error["code"], "detail": error["message"]} if error else None


class DatasetSerializer(Answer):
    id = s.CharField()
    object = Constant("dataset")
    name = s.CharField()
    bytes = s.IntegerField()
    sha256 = s.CharField()
    format = s.CharField()
    rows = s.IntegerField(help_text="Usable rows.")
    tokens = s.IntegerField()
    longest_row_tokens = s.IntegerField()
    needs_preparation = s.BooleanField(
        help_text="Nothing trains on it as it is; rows are those that a program can repair."
    )
    faulty = s.IntegerField()
    errors = s.ListField(child=s.DictField())
    long_rows = s.IntegerField(help_text="Rows that the zone's model cuts.")
    long_lines = s.ListField(child=s.IntegerField())
    left_out_long = s.IntegerField(help_text="Lines left out because they are too long.")
    ignored_keys = IgnoredKeySerializer(many=True)
    created_at = Moment()

    def get_errors(self, dataset: Dataset) -> list[Any]:
        return dataset.errors[:ERRORS_SHOWN]


class JobSerializer(TermsAnswer):
    first = ("id", "object", "bid_id", "zone", "name")
    id = s.CharField()
    object = Constant("job")
    bid_id = s.CharField()
    zone = s.CharField(source="zone.name")
    name = s.CharField()
    status = s.ChoiceField(JobStatus.values)
    price = Usd(source="price_micros")
    deadline = Moment(source="deadline_at")
    finish_planned_at = Moment()
    created_at = Moment()
    started_at = Moment(allow_null=True)
    finished_at = Moment(allow_null=True)
    plan = CellSerializer(many=True)
    progress = s.DictField()
    fault = NullText()
    failure_reason = NullText()
    start = StartSerializer(allow_null=True)
    stopped_early = s.BooleanField(help_text="It ended before its last step.")
    best_step = s.IntegerField(
        allow_null=True, help_text="Step whose weights early stopping chose."
    )
    seq = s.IntegerField()

    def get_plan(self, job: Job) -> list[PlannedCell]:
        return [PlannedCell(job.zone, slot, node) for slot, node in job.cells]

    def get_progress(self, job: Job) -> dict[str, Any]:
        return serialize_progress(job)


class SampleSerializer(Answer):
    prompt = s.CharField()
    before = s.CharField()
    after = s.CharField()


class SamplesSerializer(Answer):
    data = SampleSerializer(source="*", many=True)


class PreparationSerializer(Answer):
    id = s.CharField()
    status = s.CharField()
    vendor = s.CharField(source="vendor.name")
    vendor_price = Usd(source="sold_micros")
    due_at = Moment()
    delivered_at = Moment(allow_null=True)
    objection = NullText(
        help_text="Why the rule does not accept the delivery. You may; unanswered, it is refused."
    )
    accept_by = Moment(allow_null=True, help_text="Until then the delivery may be refused.")
    accepted_at = Moment(allow_null=True)
    concluded_at = Moment(
        allow_null=True, help_text="When the vendor was paid and spare cells were given back."
    )
    rows_in = s.IntegerField(allow_null=True)
    rows_out = s.IntegerField(allow_null=True)
    rows_held_out = s.IntegerField(allow_null=True)
    source_dataset_id = s.CharField(source="source_id")
    prepared_dataset_id = s.CharField(source="prepared_id", allow_null=True)
    held_out_dataset_id = s.CharField(source="held_out_id", allow_null=True)
    refund = Usd(source="refund_micros")
    missed = s.ListField(child=s.DictField())
    report = s.DictField()
    comparison = s.DictField(
        allow_null=True, help_text="Rows kept, changed, dropped and added, with samples."
    )
    accesses = s.ListField(child=s.DictField())

    def get_accesses(self, preparation: Preparation) -> list[dict[str, Any]]:
        return [
            {
                "at": moment(access.at),
                "kind": access.kind,
                "vendor": access.vendor.name,
                "person": access.person.get_short_name() if access.person else None,
                "is_masked": access.is_masked,
            }
            for access in list_accesses(preparation)
        ]


class PlanSerializer(Answer):
    id = s.CharField()
    object = Constant("plan")
    dataset_id = s.CharField()
    zone = s.CharField(source="zone.name", help_text="Whose tokenizer counts.")
    status = s.ChoiceField(["making", "made", "failed", "confirmed"])
    roles = s.DictField(source="asked.roles", child=s.CharField())
    drop_duplicates = s.BooleanField(source="asked.drop_duplicates")
    mask_personal_data = s.BooleanField(source="asked.mask_personal_data")
    phone_regions = s.ListField(source="asked.phone_regions", child=s.CharField())
    languages = s.ListField(source="asked.languages", child=s.CharField())
    rows = s.IntegerField(help_text="Rows that stay; a bid by this plan is sold for them.")
    tokens = s.IntegerField()
    problem = NullText(help_text="Why it cannot be made.")
    plan = s.DictField(
        allow_null=True,
        help_text="steps with rows and tokens before and after, columns with their roles, "
        "keys, examples of each kind of change, and groups of duplicates.",
    )
    created_at = Moment()
    confirmed_at = Moment(allow_null=True)

    def get_status(self, plan: DataPlan) -> str:
        if plan.confirmed_at is not None:
            return "confirmed"
        return "made" if plan.plan is not None else "failed" if plan.problem else "making"


class JobEventSerializer(Answer):
    seq = s.IntegerField()
    at = Moment()
    kind = s.CharField()
    actor = s.CharField()
    message = s.CharField()
    data = s.DictField()


class CheckpointSerializer(Answer):
    id = s.CharField()
    step = s.IntegerField()
    bytes = s.IntegerField()
    sha256 = s.CharField()
    train_loss = s.FloatField(allow_null=True)
    valid_loss = s.FloatField(allow_null=True)
    created_at = Moment()


class CancelPreviewSerializer(Answer):
    job_id = s.CharField(source="job.id")
    can_cancel = s.BooleanField(source="job.is_active")
    payment = Usd(source="bid.payment_micros")
    refund = Usd(source="due.refund_micros")
    kept = Usd(
        source="due.kept_micros", help_text="Of what is not refunded, what no work was done for."
    )
