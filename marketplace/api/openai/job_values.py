"""Jobs, checkpoints and models as OpenAI's clients read them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from marketplace.api.answers import moment, usd
from marketplace.api.models import FineTuningRequest
from marketplace.api.openai.names import name_file, name_tuned_model
from marketplace.api.openai.requests import AUTO, DPO, SUPERVISED
from marketplace.auction.models import Bid
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


def serialize_jobs(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Jobs with what their bids and requests say of them, read together."""
    ids = [job.bid_id for job in jobs]
    bids = Bid.objects.select_related("dataset").in_bulk(ids)
    requests = FineTuningRequest.objects.in_bulk(ids)
    adapters = dict(Artifact.objects.filter(job__in=jobs).values_list("job_id", "pk"))
    return [
        _show_job(job, bids[job.bid_id], requests.get(job.bid_id), adapters.get(job.pk))
        for job in jobs
    ]


def _show_job(
    job: Job, bid: Bid, request: FineTuningRequest | None, adapter_id: str | None
) -> dict[str, Any]:
    ended, succeeded = job.finished_at is not None, job.status == JobStatus.SUCCEEDED
    hyperparameters = _show_hyperparameters(job, bid, request)
    is_dpo = bid.dataset is not None and bid.dataset.format == DataFormat.PREFERENCE
    method = DPO if is_dpo else SUPERVISED
    results = [job.pk, adapter_id] if succeeded else []
    return {
        "id": job.pk,
        "object": "fine_tuning.job",
        "created_at": _seconds(job.created_at),
        "error": _show_error(job),
        "fine_tuned_model": name_tuned_model(job, suffix=_suffix(job, request))
        if succeeded
        else None,
        "finished_at": _seconds(job.finished_at),
        "estimated_finish": None if ended else _seconds(job.eta_at or job.finish_planned_at),
        "hyperparameters": hyperparameters,
        "model": job.zone.name,
        "organization_id": job.organisation_id,
        "result_files": [name_file(row_id) for row_id in results if row_id],
        "seed": job.terms.training.seed,
        "status": "validating_files" if job.awaits_data and not ended else _STATUSES[job.status],  # type: ignore[index]
        "trained_tokens": job.trained_tokens if ended else None,
        "training_file": name_file(bid.dataset_id or job.dataset_id),
        "validation_file": bid.validation_dataset_id and name_file(bid.validation_dataset_id),
        "integrations": [] if request is None else request.integrations,
        "metadata": None if request is None else request.metadata,
        "method": {"type": method, method: {"hyperparameters": hyperparameters}},
        "continued_from": bid.continued_job_id,
        "bid": {
            "id": bid.pk,
            "max_price": usd(bid.price_micros),
            "payment": usd(bid.payment_micros),
            "refunded": usd(bid.refund_micros),
            "credit": usd(bid.credit_micros),
            "currency": "usd",
            "deadline": moment(job.deadline_at),
            "finish_planned_at": moment(job.finish_planned_at),
            "zone": job.zone.name,
            "verified_only": job.verified_only,
            "position": bid.position,
            "hash": bid.decision_hash,
        },
    }


def _suffix(job: Job, request: FineTuningRequest | None) -> str:
    return job.name if request is None else request.suffix


def _show_hyperparameters(job: Job, bid: Bid, request: FineTuningRequest | None) -> dict[str, Any]:
    """What the job trains with; the multiplier as it was asked for."""
    asked = {} if request is None else request.hyperparameters
    shown = {
        "batch_size": job.terms.training.batch_size,
        "learning_rate_multiplier": asked.get("learning_rate_multiplier", AUTO),
        "n_epochs": job.terms.training.epochs,
    }
    if "beta" in asked:
        shown["beta"] = job.terms.training.dpo_beta
    return shown


def _show_error(job: Job) -> dict[str, Any] | None:
    if job.status != JobStatus.FAILED:
        return None
    is_ours = job.fault == FaultOf.SYSTEM
    return {
        "code": "server_error" if is_ours else "invalid_training_file",
        "message": job.failure_reason,
        "param": None if is_ours else "training_file",
    }


def serialize_checkpoints(job: Job, checkpoints: Sequence[Checkpoint]) -> list[dict[str, Any]]:
    request = FineTuningRequest.objects.filter(bid_id=job.bid_id).first()
    name = name_tuned_model(job, suffix=_suffix(job, request))
    return [
        {
            "id": checkpoint.pk,
            "object": "fine_tuning.job.checkpoint",
            "created_at": _seconds(checkpoint.created_at),
            "fine_tuned_model_checkpoint": f"{name}:ckpt-step-{checkpoint.step}",
            "fine_tuning_job_id": job.pk,
            "step_number": checkpoint.step,
            "metrics": {
                "step": checkpoint.step,
                "train_loss": checkpoint.train_loss,
                "valid_loss": checkpoint.valid_loss,
            },
        }
        for checkpoint in checkpoints
    ]


def serialize_tuned_models(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    requests = FineTuningRequest.objects.in_bulk([job.bid_id for job in jobs])
    return [
        {
            "id": name_tuned_model(job, suffix=_suffix(job, requests.get(job.bid_id))),
            "object": "model",
            "created": _seconds(job.finished_at),
            "owned_by": job.organisation_id,
            "parent": job.zone.name,
            "job_id": job.pk,
        }
        for job in jobs
    ]


def _seconds(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())
