"""Jobs and their checkpoints as OpenAI's clients read them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rest_framework import serializers as s

from marketplace.api.answers import (
    GIVEN,
    LEFT_OUT,
    Answer,
    AsStored,
    Constant,
    ConstantText,
    Moment,
    UnixTime,
    Usd,
)
from marketplace.api.models import FineTuningRequest
from marketplace.api.openai.names import name_file, name_tuned_model
from marketplace.api.openai.requests import AUTO, DPO, SUPERVISED
from marketplace.auction.models import Bid
from marketplace.auction.selectors import annotate_refunds
from marketplace.jobs.models import Artifact, Checkpoint, FaultOf, Job, JobStatus
from workers.protocol.job_spec import DataFormat

_STATUSES = {
    JobStatus.QUEUED: "queued",
    JobStatus.RUNNING: "running",
    JobStatus.MOVING: "running",
    JobStatus.SUCCEEDED: "succeeded",
    JobStatus.FAILED: "failed",
    JobStatus.CANCELLED: "cancelled",
    JobStatus.PAUSED: "paused",
}


class _ShownJob(NamedTuple):
    job: Job
    bid: Bid
    #: What the job was asked for with; ``None`` if it was not by OpenAI's client.
    request: FineTuningRequest | None
    adapter_id: str | None


class FineTuningJobErrorSerializer(AsStored):
    code = s.CharField(
        help_text="server_error where the fault is ours, else invalid_training_file."
    )
    message = s.CharField(help_text="Why the job failed.")
    param = s.CharField(
        allow_null=True, help_text="What of the request it comes from; null: nothing."
    )


class FineTuningJobHyperparametersSerializer(Answer):
    batch_size = s.IntegerField(source="job.terms.training.batch_size", help_text="Rows of a step.")
    learning_rate_multiplier = s.JSONField(help_text="A number, or 'auto'.")
    n_epochs = s.IntegerField(
        source="job.terms.training.epochs", help_text="Times that all rows are read."
    )
    beta = s.FloatField(required=False, help_text="How far DPO may go from the base model.")

    def get_learning_rate_multiplier(self, shown: _ShownJob) -> Any:
        # As it was asked for.
        return _read_asked(shown).get("learning_rate_multiplier", AUTO)

    def get_beta(self, shown: _ShownJob) -> Any:
        return shown.job.terms.training.dpo_beta if "beta" in _read_asked(shown) else LEFT_OUT


class FineTuningJobBidSerializer(Answer):
    id = s.CharField(source="bid.id", help_text="Id of the bid, as /api/bids names it.")
    max_price = Usd(
        source="bid.price_micros",
        allow_null=True,
        help_text="The most that the job was worth to you; null: the market was not told.",
    )
    payment = Usd(source="bid.payment_micros", help_text="What the job pays.")
    refunded = Usd(source="bid.refund_micros", help_text="What came back of the payment.")
    credit = Usd(
        source="bid.credit_micros",
        help_text="What was paid to you because the deadline was missed.",
    )
    currency = Constant("usd")
    deadline = Moment(source="job.deadline_at")
    finish_planned_at = Moment(source="job.finish_planned_at", help_text="When the plan ends.")
    zone = s.CharField(source="job.zone.name")
    verified_only = s.BooleanField(
        source="job.verified_only", help_text="On nodes of verified providers only."
    )
    position = s.IntegerField(source="bid.position", help_text="Of the decision in the zone's log.")
    hash = s.CharField(
        source="bid.decision_hash", help_text="Hash of the decision's entry in the log."
    )

    def get_max_price(self, shown: _ShownJob) -> int | None:
        return None if shown.bid.asks_price else shown.bid.price_micros


class FineTuningJobSerializer(Answer):
    id = s.CharField(source="job.id")
    object = ConstantText("fine_tuning.job")
    created_at = UnixTime(source="job.created_at")
    error = FineTuningJobErrorSerializer(
        allow_null=True, help_text="Why it failed; null: it has not."
    )
    fine_tuned_model = s.CharField(
        allow_null=True, help_text="Name of the adapter; null until the job has succeeded."
    )
    finished_at = UnixTime(
        source="job.finished_at", allow_null=True, help_text="When it ended; null: it has not."
    )
    estimated_finish = UnixTime(
        allow_null=True, help_text="When it is expected to end; null: it has ended."
    )
    hyperparameters = FineTuningJobHyperparametersSerializer(
        source="*", help_text="Settings, with what the market chose."
    )
    model = s.CharField(
        source="job.zone.name", help_text="Name of the zone, whose base model is trained on."
    )
    organization_id = s.CharField(
        source="job.organisation_id", help_text="Id of your organisation."
    )
    result_files = s.ListField(
        child=s.CharField(),
        help_text="Files with its measurements and its adapter, once it has succeeded.",
    )
    seed = s.IntegerField(
        source="job.terms.training.seed",
        help_text="Seed of the order of rows and of the first weights.",
    )
    status = s.CharField(
        help_text="validating_files, queued, running, succeeded, failed, cancelled or paused."
    )
    trained_tokens = s.IntegerField(
        allow_null=True, help_text="Tokens trained on; null until it has ended."
    )
    training_file = s.CharField(help_text="File that it trains on.")
    validation_file = s.CharField(
        allow_null=True, help_text="File whose rows are held out; null: a share of the others is."
    )
    integrations = s.ListField(
        child=s.DictField(), help_text="Where measurements were asked to be sent."
    )
    metadata = s.DictField(
        source="request.metadata",
        allow_null=True,
        help_text="The pairs of texts that it was asked for with.",
    )
    method = s.DictField(help_text="How it is trained, with its settings.")
    continued_from = s.CharField(
        source="bid.continued_job_id",
        allow_null=True,
        help_text="Id of the job whose adapter it continues; null: none.",
    )
    resumed_from = s.CharField(
        source="bid.resumed_job_id",
        allow_null=True,
        help_text="Id of the paused job that it goes on with; null: none.",
    )
    bid = FineTuningJobBidSerializer(source="*", help_text="What was bid for it, and what it pays.")

    def get_error(self, shown: _ShownJob) -> dict[str, Any] | None:
        job = shown.job
        if job.status != JobStatus.FAILED:
            return None
        is_ours = job.fault == FaultOf.SYSTEM
        return {
            "code": "server_error" if is_ours else "invalid_training_file",
            "message": job.failure_reason,
            "param": None if is_ours else "training_file",
        }

    def get_fine_tuned_model(self, shown: _ShownJob) -> str | None:
        if shown.job.status != JobStatus.SUCCEEDED:
            return None
        return name_tuned_model(shown.job, suffix=find_suffix(shown.job, shown.request))

    def get_estimated_finish(self, shown: _ShownJob) -> datetime | None:
        job = shown.job
        return None if job.finished_at else job.eta_at or job.finish_planned_at

    def get_result_files(self, shown: _ShownJob) -> list[str]:
        if shown.job.status != JobStatus.SUCCEEDED:
            return []
        return [name_file(row_id) for row_id in (shown.job.pk, shown.adapter_id) if row_id]

    def get_status(self, shown: _ShownJob) -> str:
        job = shown.job
        is_prepared = job.awaits_data and job.finished_at is None
        return "validating_files" if is_prepared else _STATUSES[JobStatus(job.status)]

    def get_trained_tokens(self, shown: _ShownJob) -> int | None:
        return shown.job.trained_tokens if shown.job.finished_at else None

    def get_training_file(self, shown: _ShownJob) -> str:
        return name_file(shown.bid.dataset_id or shown.job.dataset_id)

    def get_validation_file(self, shown: _ShownJob) -> str | None:
        held_out_id = shown.bid.validation_dataset_id
        return held_out_id and name_file(held_out_id)

    def get_integrations(self, shown: _ShownJob) -> list[Any]:
        return [] if shown.request is None else shown.request.integrations

    def get_method(self, shown: _ShownJob) -> dict[str, Any]:
        dataset = shown.bid.dataset
        is_dpo = dataset is not None and dataset.format == DataFormat.PREFERENCE
        method = DPO if is_dpo else SUPERVISED
        hyperparameters = FineTuningJobHyperparametersSerializer.show(shown)
        return {"type": method, method: {"hyperparameters": hyperparameters}}


class FineTuningJobCheckpointSerializer(Answer):
    id = s.CharField()
    object = ConstantText("fine_tuning.job.checkpoint")
    created_at = UnixTime()
    fine_tuned_model_checkpoint = s.CharField(
        source=GIVEN, help_text="Name of the model as it was at this step."
    )
    fine_tuning_job_id = s.CharField(source="job_id", help_text="Id of the job.")
    step_number = s.IntegerField(source="step", help_text="Step after which it was written.")
    metrics = s.DictField(help_text="step, train_loss and valid_loss.")

    def get_metrics(self, checkpoint: Checkpoint) -> dict[str, Any]:
        names = ("step", "train_loss", "valid_loss")
        return {name: getattr(checkpoint, name) for name in names}


def serialize_jobs(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Show jobs with what their bids and requests say of them, read together."""
    ids = [job.bid_id for job in jobs]
    bids = annotate_refunds(Bid.objects.select_related("dataset")).in_bulk(ids)
    requests = FineTuningRequest.objects.in_bulk(ids)
    adapters = dict(Artifact.objects.filter(job__in=jobs).values_list("job_id", "pk"))
    return FineTuningJobSerializer.show_each(
        _ShownJob(job, bids[job.bid_id], requests.get(job.bid_id), adapters.get(job.pk))
        for job in jobs
    )


def serialize_checkpoints(job: Job, checkpoints: Sequence[Checkpoint]) -> list[dict[str, Any]]:
    request = FineTuningRequest.objects.filter(bid_id=job.bid_id).first()
    suffix = find_suffix(job, request)
    return [
        FineTuningJobCheckpointSerializer.show(
            of, fine_tuned_model_checkpoint=name_tuned_model(job, suffix=suffix, checkpoint=of)
        )
        for of in checkpoints
    ]


def find_suffix(job: Job, request: FineTuningRequest | None) -> str:
    return job.name if request is None else request.suffix


def _read_asked(shown: _ShownJob) -> dict[str, Any]:
    return {} if shown.request is None else shown.request.hyperparameters
