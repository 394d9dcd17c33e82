"""What the market's API answers with about data sets, preparations, jobs and their results."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers as s

from marketplace.api.answers import Answer, AsStored, Constant, Moment, NullText, Usd, moment
from marketplace.api.market.bid_serializers import (
    CellSerializer,
    PlannedCell,
    ResumptionSerializer,
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
    name = s.CharField(help_text="Name of the file.")
    bytes = s.IntegerField()
    sha256 = s.CharField()
    status = s.ChoiceField(
        ["waiting", "reading", "undecided", "refused", "stored"],
        help_text="undecided: it holds rows that need a choice; stored: it is a data set.",
    )
    rows_read = s.IntegerField(help_text="Rows read until now.")
    share_read = s.FloatField(help_text="Of the file, from 0 to 1.")
    dataset_id = s.CharField(
        allow_null=True, help_text="The data set that it became; null until it is stored."
    )
    error = s.DictField(
        allow_null=True, help_text="code and detail of what is wrong with the file; null: nothing."
    )
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
    format = s.CharField(
        help_text="What its rows are, such as chat, completion, text or preference."
    )
    rows = s.IntegerField(help_text="Usable rows.")
    tokens = s.IntegerField(help_text="Tokens of the usable rows, by the zone's tokenizer.")
    longest_row_tokens = s.IntegerField(help_text="Tokens of the longest row.")
    needs_preparation = s.BooleanField(
        help_text="Nothing trains on it as it is; rows are those that a program can repair."
    )
    faulty = s.IntegerField(help_text="Lines that training leaves out.")
    errors = s.ListField(
        child=s.DictField(), help_text="The first of them: line, column, what is wrong and a hint."
    )
    long_rows = s.IntegerField(help_text="Rows that the zone's model cuts.")
    long_lines = s.ListField(child=s.IntegerField(), help_text="The lines of the first of them.")
    left_out_long = s.IntegerField(help_text="Lines left out because they are too long.")
    ignored_keys = IgnoredKeySerializer(
        many=True, help_text="Keys of usable rows that training does not read."
    )
    created_at = Moment()

    def get_errors(self, dataset: Dataset) -> list[Any]:
        return dataset.errors[:ERRORS_SHOWN]


class JobSerializer(TermsAnswer):
    first = ("id", "object", "bid_id", "zone", "name")
    id = s.CharField()
    object = Constant("job")
    bid_id = s.CharField()
    zone = s.CharField(source="zone.name")
    name = s.CharField(help_text="Name of the job.")
    status = s.ChoiceField(
        JobStatus.values, help_text="moving: it goes on elsewhere from its last checkpoint."
    )
    price = Usd(source="price_micros", help_text="What the job paid.")
    deadline = Moment(source="deadline_at")
    finish_planned_at = Moment(help_text="When its plan ends.")
    created_at = Moment()
    started_at = Moment(allow_null=True, help_text="When its first step began; null: it waits.")
    finished_at = Moment(allow_null=True)
    plan = CellSerializer(many=True, help_text="Cells that it runs in.")
    progress = s.DictField(
        help_text="Steps, losses, speed and the expected end, as the node last reported."
    )
    fault = NullText(help_text="Whose fault a failure is, user or system; null: it has not failed.")
    failure_reason = NullText()
    start = StartSerializer(
        allow_null=True, help_text="What training begins with; null: the base model alone."
    )
    resumes = ResumptionSerializer(
        source="terms.resumes",
        allow_null=True,
        help_text="The paused job that it goes on with; null: it is none.",
    )
    stopped_early = s.BooleanField(help_text="It ended before its last step.")
    best_step = s.IntegerField(
        allow_null=True, help_text="Step whose weights early stopping chose."
    )
    seq = s.IntegerField(help_text="Number of its last event.")

    def get_plan(self, job: Job) -> list[PlannedCell]:
        return [PlannedCell(job.zone, slot, node) for slot, node in job.cells]

    def get_progress(self, job: Job) -> dict[str, Any]:
        return serialize_progress(job)


class SampleSerializer(Answer):
    prompt = s.CharField(help_text="A prompt of the rows that were held out.")
    before = s.CharField(help_text="What the base model writes to it.")
    after = s.CharField(help_text="What the adapter writes to it.")


class SamplesSerializer(Answer):
    data = SampleSerializer(
        source="*",
        many=True,
        help_text="Texts before and after; none unless the job has succeeded.",
    )


class PreparationSerializer(Answer):
    id = s.CharField()
    status = s.CharField(help_text="How far the vendor is.")
    vendor = s.CharField(source="vendor.name", help_text="Name of the vendor.")
    vendor_price = Usd(source="sold_micros", help_text="The vendor's part of what the job paid.")
    due_at = Moment(help_text="When the delivery is due.")
    delivered_at = Moment(allow_null=True, help_text="When it was delivered; null: it is not.")
    objection = NullText(
        help_text="Why the rule does not accept the delivery. You may; unanswered, it is refused."
    )
    accept_by = Moment(allow_null=True, help_text="Until then the delivery may be refused.")
    accepted_at = Moment(allow_null=True, help_text="When it was accepted; null: it is not.")
    concluded_at = Moment(
        allow_null=True, help_text="When the vendor was paid and spare cells were given back."
    )
    rows_in = s.IntegerField(allow_null=True, help_text="Rows that the vendor got.")
    rows_out = s.IntegerField(allow_null=True, help_text="Rows that it delivered.")
    rows_held_out = s.IntegerField(
        allow_null=True, help_text="Rows of them that are held out of training."
    )
    source_dataset_id = s.CharField(source="source_id", help_text="The data as you uploaded them.")
    prepared_dataset_id = s.CharField(
        source="prepared_id",
        allow_null=True,
        help_text="The data that were delivered; null until then.",
    )
    held_out_dataset_id = s.CharField(
        source="held_out_id",
        allow_null=True,
        help_text="The rows that are held out; null: none are.",
    )
    refund = Usd(source="refund_micros", help_text="What came back of the payment.")
    missed = s.ListField(
        child=s.DictField(),
        help_text="Vendors that had the work before and did not deliver, and why.",
    )
    report = s.DictField(help_text="The vendor's own account of what it did.")
    comparison = s.DictField(
        allow_null=True, help_text="Rows kept, changed, dropped and added, with samples."
    )
    accesses = s.ListField(child=s.DictField(), help_text="Who saw the data, and when.")

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
    status = s.ChoiceField(
        ["making", "made", "failed", "confirmed"],
        help_text="making, made, failed, or confirmed by you.",
    )
    roles = s.DictField(
        source="asked.roles",
        child=s.CharField(),
        help_text="What each column holds, as it was asked.",
    )
    drop_duplicates = s.BooleanField(
        source="asked.drop_duplicates", help_text="Whether repeated rows are left out."
    )
    mask_personal_data = s.BooleanField(
        source="asked.mask_personal_data", help_text="Whether personal data are masked."
    )
    phone_regions = s.ListField(
        source="asked.phone_regions",
        child=s.CharField(),
        help_text="Regions whose phone numbers are found; none are all.",
    )
    languages = s.ListField(
        source="asked.languages",
        child=s.CharField(),
        help_text="Languages that are kept; none keeps all.",
    )
    rows = s.IntegerField(help_text="Rows that stay; a bid by this plan is sold for them.")
    tokens = s.IntegerField(help_text="Tokens of the rows that stay.")
    problem = NullText(help_text="Why it cannot be made.")
    plan = s.DictField(
        allow_null=True,
        help_text="steps with rows and tokens before and after, columns with their roles, "
        "keys, examples of each kind of change, and groups of duplicates.",
    )
    created_at = Moment()
    confirmed_at = Moment(allow_null=True, help_text="When you confirmed it; null: you have not.")

    def get_status(self, plan: DataPlan) -> str:
        if plan.confirmed_at is not None:
            return "confirmed"
        return "made" if plan.plan is not None else "failed" if plan.problem else "making"


class JobEventSerializer(Answer):
    seq = s.IntegerField(help_text="Number of the event, from 1; continue after it.")
    at = Moment(help_text="When it happened.")
    kind = s.CharField(help_text="What happened, as a word for programs.")
    actor = s.CharField(help_text="system, or the id of the user or node that did it.")
    message = s.CharField(help_text="The same as a sentence.")
    data = s.DictField(help_text="What else is known of it, by kind.")


class CheckpointSerializer(Answer):
    id = s.CharField()
    step = s.IntegerField(help_text="Step after which it was written.")
    bytes = s.IntegerField()
    sha256 = s.CharField()
    train_loss = s.FloatField(allow_null=True, help_text="Training loss at that step.")
    valid_loss = s.FloatField(
        allow_null=True, help_text="Loss on the rows held out; null: not measured."
    )
    created_at = Moment()


class CancelPreviewSerializer(Answer):
    job_id = s.CharField(source="job.id")
    can_cancel = s.BooleanField(
        source="job.is_active", help_text="Whether the job can still be ended."
    )
    payment = Usd(source="bid.payment_micros", help_text="What the job paid.")
    refund = Usd(source="due.refund_micros", help_text="What would come back now.")
    kept = Usd(
        source="due.kept_micros", help_text="Of what is not refunded, what no work was done for."
    )
    waits = Usd(
        source="due.waits_micros",
        help_text="Of what is kept, what comes back if all cells that begin soon are sold again.",
    )


class PausePreviewSerializer(CancelPreviewSerializer):
    checkpoint_step = s.IntegerField(
        source="job.checkpoint_step", help_text="Step of the checkpoint that it would go on from."
    )
    steps_done_again = s.IntegerField(
        help_text="Steps after that, so far: they are paid, and done and paid again once resumed."
    )

    def get_steps_done_again(self, shown: dict[str, Any]) -> int:
        job = shown["job"]
        return max(0, job.step - job.checkpoint_step)
