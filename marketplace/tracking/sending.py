"""Sending what was measured, a batch at a time and outside of any transaction.

A worker may die at any point. The batch is then sent again; the service leaves out the steps that
it has. A job never waits for any of this, and nothing of it fails a job.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from cryptography.fernet import InvalidToken

from marketplace.common.durable.kinds import Failure, HeldWork, WorkFailed
from marketplace.common.encryption import decrypt_text
from marketplace.jobs.loss_curves import Point, read_points
from marketplace.jobs.models import Job
from marketplace.tracking.models import TrackedRun, TrackingKey, TrackingService
from marketplace.tracking.run_batches import SentBatch, SentRow
from marketplace.tracking.trackers import TRACKERS
from workers.protocol.wire import to_json

log = logging.getLogger(__name__)

#: Between two batches of a job that runs.
EVERY = timedelta(seconds=30)
#: The kind of work that sending a run's batches is.
SEND = "tracking.send"
ROWS_MAX = 5_000
LONGEST_PAUSE = timedelta(hours=1)
#: A bid without a job was refused.
UNUSED_FOR = timedelta(days=30)
_OVER = Job.ENDED
#: Names under which values are sent, by our own.
_NAMES = {
    "train_loss": "train/loss",
    "valid_loss": "valid/loss",
    "learning_rate": "train/learning_rate",
    "grad_norm": "train/grad_norm",
    "epoch": "train/epoch",
    "tokens_per_s": "train/tokens_per_s",
    "samples_per_s": "train/samples_per_s",
}


@dataclass(frozen=True, slots=True)
class RunBatch:
    """What a run has not got yet."""

    run: TrackedRun
    #: ``None`` while its bid has none.
    job: Job | None = None
    points: Sequence[Point] = ()

    @property
    def is_last(self) -> bool:
        """Whether nothing can follow it."""
        return self.job is not None and self.job.status in _OVER and len(self.points) < ROWS_MAX


def load_batch(work: HeldWork) -> RunBatch | None:
    """The next measurements of a run."""
    run = TrackedRun.objects.filter(pk=work.key).first()
    if run is None:
        return None
    job = Job.objects.select_related("zone").filter(bid_id=run.bid_id).first()
    if job is None:
        return RunBatch(run)
    points = read_points(job.pk, after=run.sent_point)
    return RunBatch(run, job, points[:ROWS_MAX])


def send_batch(_work: HeldWork, batch: RunBatch) -> str:
    """Send a batch, if there is something to send; the run's address.

    Raises
    ------
    WorkFailed
    """
    if batch.job is None or not (batch.points or batch.is_last):
        return ""
    return _send(batch.run, batch.job, batch.points, is_last=batch.is_last)


def apply_batch(_work: HeldWork, batch: RunBatch, url: str, *, now: datetime) -> datetime | None:
    """Store how far the run is; when its next batch is due."""
    run = batch.run
    if batch.job is None:
        return _wait_for_job(run, now=now)
    run.url = url or run.url
    if batch.points:
        run.sent_point = batch.points[-1].id
        run.sent_step = max(run.sent_step, *(point.step for point in batch.points))
    run.reason, run.ended_at = "", now if batch.is_last else None
    run.save(update_fields=["url", "sent_point", "sent_step", "reason", "ended_at"])
    if batch.is_last:
        return None
    return now if len(batch.points) == ROWS_MAX else now + EVERY


def _wait_for_job(run: TrackedRun, *, now: datetime) -> datetime | None:
    """Look again, more and more rarely; a bid without a job for long was refused."""
    age = now - run.created_at
    if age >= UNUSED_FOR:
        run.delete()
        return None
    return now + min(max(EVERY, age / 10), LONGEST_PAUSE)


def fail_batch(work: HeldWork, failure: Failure, *, now: datetime) -> None:
    """Store why a batch was not sent, for the run's owner."""
    log.warning("a run was not sent: %s", failure.reason, extra={"run": work.key})
    ended_at = now if failure.retry_at is None else None
    runs = TrackedRun.objects.filter(pk=work.key)
    runs.update(reason=failure.reason[:300], ended_at=ended_at)


def _send(run: TrackedRun, job: Job, points: Sequence[Point], *, is_last: bool) -> str:
    """Send a batch; the run's address.

    Raises
    ------
    WorkFailed
    """
    service = TrackingService(run.service)
    stored = TrackingKey.objects.filter(organisation=run.organisation_id, service=service).first()
    if stored is None:
        raise WorkFailed(f"The key of {service.label} was removed.", is_final=True)
    return TRACKERS[service].send(
        SentBatch(
            job_id=job.pk,
            key=_read_key(stored),
            address=stored.address,
            project=run.project,
            entity=run.entity,
            name=run.name or job.name,
            tags=run.tags,
            config=_describe_job(job),
            rows=_build_rows(points, after=run.sent_step),
            began_at=run.created_at,
            ended=job.status if is_last else None,
            ended_at=job.finished_at if is_last else None,
        )
    )


def _read_key(stored: TrackingKey) -> str:
    try:
        return decrypt_text(stored.key) if stored.key else ""
    except InvalidToken:
        reason = "The stored key cannot be read any more. Set it again."
        raise WorkFailed(reason, is_final=True) from None


def _build_rows(points: Sequence[Point], *, after: int) -> list[SentRow]:
    """One row for each step that was not sent; a job that went back repeats some."""
    rows: dict[int, SentRow] = {}
    for point in points:
        if point.step > after:
            values = {
                shown: value
                for name, shown in _NAMES.items()
                if (value := getattr(point, name)) is not None
            }
            had = rows.get(point.step)
            rows[point.step] = SentRow(
                step=point.step,
                at=point.at if had is None else had.at,
                values=values if had is None else {**had.values, **values},
            )
    return [rows[step] for step in sorted(rows)]


def _describe_job(job: Job) -> dict[str, Any]:
    """What the owner chose. Neither prices nor nodes are in it."""
    return {
        "base_model": job.zone.base_model_name,
        "adapter": to_json(job.terms.adapter),
    } | to_json(job.terms.training)
