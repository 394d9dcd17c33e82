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
    Moment,
    UnixTime,
    Usd,
)
from marketplace.api.models import FineTuningRequest
from marketplace.api.openai.names import name_file, name_tuned_model
from marketplace.api.openai.requests import AUTO, DPO, SUPERVISED
from marketplace.api.openai.schemas import always
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
}


class _ShownJob(NamedTuple):
    job: Job
    bid: Bid
    #: What the job was asked for with; ``None`` if it was not by OpenAI's client.
    request: FineTuningRequest | None
    adapter_id: str | None


class FineTuningJobErrorSerializer(AsStored):
    code = s.CharField()
    message = s.CharField()
    param = s.CharField(allow_null=True)


class FineTuningJobHyperparametersSerializer(Answer):
    batch_size = s.IntegerField(source="job.terms.training.batch_size")
    learning_rate_multiplier = s.JSONField(help_text="A number, or 'auto'.")
    n_epochs = s.IntegerField(source="job.terms.training.epochs")
    beta = s.FloatField(required=False)

    def get_learning_rate_multiplier(self, shown: _ShownJob) -> Any:
        # As it was asked for.
        return _read_asked(shown).get("learning_rate_multiplier", AUTO)

    def get_beta(self, shown: _ShownJob) -> Any:
        return shown.job.terms.training.dpo_beta if "beta" in _read_asked(shown) else LEFT_OUT


class FineTuningJobBidSerializer(Answer):
    id = s.CharField(source="bid.id")
    max_price = Usd(source="bid.price_micros")
    payment = Usd(source="bid.payment_micros", help_text="What the job pays, in dollars.")
    refunded = Usd(source="bid.refund_micros")
    credit = Usd(source="bid.credit_micros")
    currency = Constant("usd")
    deadline = Moment(source="job.deadline_at")
    finish_planned_at = Moment(source="job.finish_planned_at")
    zone = s.CharField(source="job.zone.name")
    verified_only = s.BooleanField(
        source="job.verified_only", help_text="On nodes of verified providers only."
    )
    position = s.IntegerField(source="bid.position", help_text="Of the decision in the zone's log.")
    hash = s.CharField(source="bid.decision_hash")


class FineTuningJobSerializer(Answer):
    id = s.CharField(source="job.id")
    object = always("fine_tuning.job")
    created_at = UnixTime(source="job.created_at", help_text="Unix seconds.")
    error = FineTuningJobErrorSerializer(allow_null=True)
    fine_tuned_model = s.CharField(allow_null=True)
    finished_at = UnixTime(source="job.finished_at", allow_null=True)
    estimated_finish = UnixTime(allow_null=True)
    hyperparameters = FineTuningJobHyperparametersSerializer(source="*")
    model = s.CharField(source="job.zone.name")
    organization_id = s.CharField(source="job.organisation_id")
    result_files = s.ListField(child=s.CharField())
    seed = s.IntegerField(source="job.terms.training.seed")
    status = s.CharField(
        help_text="validating_files, queued, running, succeeded, failed or cancelled."
    )
    trained_tokens = s.IntegerField(allow_null=True)
    training_file = s.CharField()
    validation_file = s.CharField(allow_null=True)
    integrations = s.ListField(child=s.DictField())
    metadata = s.DictField(source="request.metadata", allow_null=True)
    method = s.DictField()
    continued_from = s.CharField(source="bid.continued_job_id", allow_null=True)
    bid = FineTuningJobBidSerializer(source="*")

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
    object = always("fine_tuning.job.checkpoint")
    created_at = UnixTime()
    fine_tuned_model_checkpoint = s.CharField(source=GIVEN)
    fine_tuning_job_id = s.CharField(source="job_id")
    step_number = s.IntegerField(source="step")
    metrics = s.DictField()

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
    name = name_tuned_model(job, suffix=find_suffix(job, request))
    return [
        FineTuningJobCheckpointSerializer.show(
            of, fine_tuned_model_checkpoint=f"{name}:ckpt-step-{of.step}"
        )
        for of in checkpoints
    ]


def find_suffix(job: Job, request: FineTuningRequest | None) -> str:
    return job.name if request is None else request.suffix


def _read_asked(shown: _ShownJob) -> dict[str, Any]:
    return {} if shown.request is None else shown.request.hyperparameters
