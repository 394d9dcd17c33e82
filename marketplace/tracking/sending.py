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
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.fernet import InvalidToken
from django.conf import settings
from django.db import transaction

from marketplace.common.backoff import compute_backoff
from marketplace.common.encryption import decrypt_text
from marketplace.jobs.models import Job, JobStatus, MetricPoint
from marketplace.tracking.locks import lock_due_run
from marketplace.tracking.models import TrackedRun, TrackingKey

log = logging.getLogger(__name__)

#: Between two batches of a job that runs.
EVERY = timedelta(seconds=30)
#: Longer than a batch may take.
CLAIM = timedelta(minutes=5)
SEND_WITHIN_S = 120.0
ROWS_MAX = 5_000
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=30), timedelta(hours=1)
#: Tries that fail for so long are the last.
GIVE_UP_AFTER = timedelta(hours=24)
#: A bid without a job was refused.
UNUSED_FOR = timedelta(days=30)
_OVER = (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED)
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


#: Columns that an attempt decides.
_OUTCOME = (
    "url",
    "sent_point",
    "sent_step",
    "ended_at",
    "failures",
    "failing_since_at",
    "reason",
)


class SendingFailed(Exception):
    """A batch was not sent. ``is_final``: trying again would say the same."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


def send_next(*, clock: Callable[[], datetime]) -> bool:
    """Send what the run that waits longest has not got; whether there was one.

    Call outside of any transaction.
    """
    with transaction.atomic():
        run = lock_due_run(now=clock())
        if run is None:
            return False
        run.due_at = clock() + CLAIM
        run.save(update_fields=["due_at"])
    job = Job.objects.select_related("zone").get(bid_id=run.bid_id)
    points = list(
        MetricPoint.objects.filter(job=job, pk__gt=run.sent_point).order_by("pk")[:ROWS_MAX]
    )
    is_last = job.status in _OVER and len(points) < ROWS_MAX
    if not points and not is_last:
        _wait(run, now=clock())
        return True
    try:
        url = _send(run, job, points, is_last=is_last)
    except SendingFailed as failure:
        _record_failure(run, failure, now=clock())
    else:
        run.url = url or run.url
        if points:
            run.sent_point = points[-1].pk
            run.sent_step = max(run.sent_step, *(point.step for point in points))
        run.ended_at = clock() if is_last else None
        run.failures, run.failing_since_at, run.reason = 0, None, ""
        _wait(run, now=clock(), pause=timedelta(0) if len(points) == ROWS_MAX else EVERY)
    return True


def delete_unused_runs(*, now: datetime) -> None:
    """Forget the runs of bids that never became a job."""
    old = TrackedRun.objects.filter(created_at__lte=now - UNUSED_FOR, ended_at=None)
    known = Job.objects.filter(bid_id__in=old.values("bid_id")).values("bid_id")
    old.exclude(bid_id__in=known).delete()


def _wait(run: TrackedRun, *, now: datetime, pause: timedelta = EVERY) -> None:
    """Store what came of an attempt, unless its claim ran out and a later one has begun."""
    claimed = TrackedRun.objects.filter(pk=run.pk, due_at=run.due_at)
    claimed.update(due_at=now + pause, **{name: getattr(run, name) for name in _OUTCOME})


def _record_failure(run: TrackedRun, failure: SendingFailed, *, now: datetime) -> None:
    run.failures += 1
    run.failing_since_at = since = run.failing_since_at or now
    run.reason = str(failure)[:300]
    if failure.is_final or now - since >= GIVE_UP_AFTER:
        run.ended_at = now
    log.warning("a run was not sent: %s", run.reason, extra={"bid": run.bid_id})
    _wait(
        run,
        now=now,
        pause=compute_backoff(failures=run.failures, first=FIRST_PAUSE, most=LONGEST_PAUSE),
    )


def _send(run: TrackedRun, job: Job, points: list[MetricPoint], *, is_last: bool) -> str:
    """Send a batch; the run's address.

    Raises
    ------
    SendingFailed
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
        raise SendingFailed("The key of Weights & Biases was removed.", is_final=True)
    try:
        return decrypt_text(stored.key)
    except InvalidToken:
        reason = "The stored key cannot be read any more. Set it again."
        raise SendingFailed(reason, is_final=True) from None


def _build_rows(points: list[MetricPoint], *, after: int) -> list[dict[str, Any]]:
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
    return {"base_model": job.zone.base_model_name, "adapter": job.spec["adapter"], **job.training}


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
            raise SendingFailed("Weights & Biases did not answer in time.") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if not answer:
        log.warning("the sender ended with %s: %s", process.returncode, _read_end(errors))
        raise SendingFailed("The client of Weights & Biases ended without an answer.")
    result = json.loads(answer)
    if "error" in result:
        raise SendingFailed(result["error"], is_final=result["is_final"])
    return result["url"] or ""


def _read_end(file: Path) -> str:
    return file.read_bytes()[-2000:].decode(errors="replace")
