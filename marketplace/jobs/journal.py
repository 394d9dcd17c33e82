"""Records what happened to a job in its history, and tells those who watch and webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from marketplace.common.events import publish_on_commit
from marketplace.jobs.models import EventKind, Job, JobEvent
from marketplace.webhooks.news import News
from marketplace.webhooks.outbox import add_messages

_MESSAGE_CHARS = 1000


def record_event(
    *,
    job: Job,
    kind: EventKind,
    message: str,
    now: datetime,
    actor: str = "system",
    data: dict[str, Any] | None = None,
) -> JobEvent:
    """Append to the job's history and publish it. Call while holding the job; saves its ``seq``."""
    job.seq += 1
    job.save(update_fields=["seq"])
    event = JobEvent.objects.create(
        job=job,
        seq=job.seq,
        at=now,
        kind=kind,
        actor=actor,
        message=message[:_MESSAGE_CHARS],
        data=data or {},
    )
    event_data = serialize_event(event, status=job.status)
    publish_on_commit(
        stream=f"job.{job.pk}", event=event_data | {"progress": serialize_progress(job)}
    )
    # OpenAI's clients look for the job's id under this name.
    news = News(
        job.organisation_id,
        f"job.{kind}",
        {"id": job.pk, **event_data},
        name=job.name,
        person_id=job.created_by_id or "",
    )
    add_messages(news=[news], now=now)
    return event


def serialize_event(event: JobEvent, *, status: str | None = None) -> dict[str, Any]:
    """An event as browsers and clients get it."""
    value = {
        "type": "event",
        "seq": event.seq,
        "job_id": event.job_id,
        "at": event.at.isoformat(),
        "kind": event.kind,
        "actor": event.actor,
        "message": event.message,
        "data": event.data,
    }
    return value if status is None else value | {"status": str(status)}


def publish_progress(*, job: Job, points: list[dict[str, Any]], log: list[str]) -> None:
    """Publish where the job stands. Call while holding the job, before saving its new ``seq``."""
    job.seq += 1
    publish_on_commit(
        stream=f"job.{job.pk}",
        event={
            "type": "progress",
            "seq": job.seq,
            "job_id": job.pk,
            "status": str(job.status),
            **serialize_progress(job),
            "points": points,
            "log": log,
        },
    )


def serialize_progress(job: Job) -> dict[str, Any]:
    """Where a job stands, as browsers and clients get it."""
    return {
        "step": job.step,
        "total_steps": job.total_steps,
        "epoch": job.epoch,
        "samples_done": job.samples_done,
        "checkpoint_step": job.checkpoint_step,
        "first_train_loss": job.first_train_loss,
        "train_loss": job.train_loss,
        "valid_loss_before": job.valid_loss_before,
        "valid_loss": job.valid_loss,
        "learning_rate": job.learning_rate,
        "grad_norm": job.grad_norm,
        "tokens_per_s": job.tokens_per_s,
        "samples_per_s": job.samples_per_s,
        "memory_gb": job.memory_gb,
        "eta_at": None if job.eta_at is None else job.eta_at.isoformat(),
        "progressed_at": None if job.progressed_at is None else job.progressed_at.isoformat(),
    }
