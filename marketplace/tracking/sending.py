"""Sending what was measured: each batch by a process of its own, outside of any transaction.

A worker may die at any point. The batch is then sent again; the service leaves out the steps that
it has. A job never waits for any of this, and nothing of it fails a job.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.fernet import InvalidToken
from django.conf import settings

from marketplace.common.durable.kinds import Failure, HeldWork, WorkFailed
from marketplace.common.encryption import decrypt_text
from marketplace.jobs.loss_curves import Point, read_points
from marketplace.jobs.models import Job, JobStatus
from marketplace.tracking.models import TrackedRun, TrackingKey
from workers.protocol.wire import to_json

log = logging.getLogger(__name__)

#: Between two batches of a job that runs.
EVERY = timedelta(seconds=30)
#: The kind of work that sending a run's batches is.
SEND = "tracking.send"
SEND_WITHIN_S = 120.0
ROWS_MAX = 5_000
LONGEST_PAUSE = timedelta(hours=1)
#: A bid without a job was refused.
UNUSED_FOR = timedelta(days=30)
_OVER = Job.ENDED
_ROOT = Path(__file__).parents[2]
_ENVIRONMENT = ("PATH", "LANG", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE")
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
    log.warning("a run was not sent: %s", failure.reason, extra={"bid": work.key})
    ended_at = now if failure.retry_at is None else None
    runs = TrackedRun.objects.filter(pk=work.key)
    runs.update(reason=failure.reason[:300], ended_at=ended_at)


def _send(run: TrackedRun, job: Job, points: Sequence[Point], *, is_last: bool) -> str:
    """Send a batch; the run's address.

    Raises
    ------
    WorkFailed
    """
    asked = {
        "id": job.pk,
        "key": _read_key(run),
        "base_url": settings.WANDB_URL,
        "project": run.project,
        "entity": run.entity,
        "name": run.name or job.name,
        "tags": run.tags,
        "config": _describe_job(job),
        "rows": _build_rows(points, after=run.sent_step),
        "summary": {"status": job.status} if is_last else {},
        "exit_code": None if not is_last else int(job.status != JobStatus.SUCCEEDED),
    }
    with tempfile.TemporaryDirectory(prefix="finetender-tracking-") as folder:
        return _run_sender(asked | {"folder": folder}, Path(folder))


def _read_key(run: TrackedRun) -> str:
    stored = TrackingKey.objects.filter(organisation=run.organisation_id).first()
    if stored is None:
        raise WorkFailed("The key of Weights & Biases was removed.", is_final=True)
    try:
        return decrypt_text(stored.key)
    except InvalidToken:
        reason = "The stored key cannot be read any more. Set it again."
        raise WorkFailed(reason, is_final=True) from None


def _build_rows(points: Sequence[Point], *, after: int) -> list[dict[str, Any]]:
    """One row for each step that was not sent; a job that went back repeats some."""
    rows: dict[int, dict[str, Any]] = {}
    for point in points:
        if point.step > after:
            values = {
                shown: value
                for name, shown in _NAMES.items()
                if (value := getattr(point, name)) is not None
            }
            rows.setdefault(point.step, {}).update(values)
    return [{"step": step, "values": rows[step]} for step in sorted(rows)]


def _describe_job(job: Job) -> dict[str, Any]:
    """What the owner chose. Neither prices nor nodes are in it."""
    return {
        "base_model": job.zone.base_model_name,
        "adapter": to_json(job.terms.adapter),
    } | to_json(job.terms.training)


def _run_sender(asked: dict[str, Any], folder: Path) -> str:
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    # The client looks for settings, keys and a cache in the home folder.
    environment |= {"HOME": str(folder), "WANDB_ERROR_REPORTING": "false"}
    errors = folder / "errors"
    with errors.open("wb") as log_file:
        process = subprocess.Popen(
            (sys.executable, "-m", "marketplace.tracking.sender"),
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log_file,
            # With the service that the client starts, which may outlive it.
            start_new_session=True,
        )
        try:
            answer, _ = process.communicate(json.dumps(asked).encode(), timeout=SEND_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise WorkFailed("Weights & Biases did not answer in time.") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if not answer:
        log.warning("the sender ended with %s: %s", process.returncode, _read_end(errors))
        raise WorkFailed("The client of Weights & Biases ended without an answer.")
    result = json.loads(answer)
    if "error" in result:
        raise WorkFailed(result["error"], is_final=result["is_final"])
    return result["url"] or ""


def _read_end(file: Path) -> str:
    return file.read_bytes()[-2000:].decode(errors="replace")
