"""When each task of the clock last succeeded: what health, status and the operator's page go by."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from django.conf import settings

from marketplace.common.models import Heartbeat

#: A task that runs more often is written down this often, by each process.
WRITE_EVERY_S = 10.0
#: Periods, and time besides, without a success after which a task is late.
LATE_PERIODS = 3
LATE_AFTER = timedelta(seconds=2 * WRITE_EVERY_S + 10)
_ERROR_CHARS = 300

#: When this process last wrote a task down, by the machine's own clock.
_written: dict[str, float] = {}
_ALL_AT_REST = "all at rest"


def is_watched(task: str) -> bool:
    """Whether the clock sends this task, so that its silence means something."""
    return any(entry["task"] == task for entry in settings.CELERY_BEAT_SCHEDULE.values())


def record_success(task: str, *, now: datetime, lag_s: float | None = None) -> None:
    """Note that a task did its work, and how long it had waited for a worker."""
    if time.monotonic() < _written.get(task, float("-inf")) + WRITE_EVERY_S:
        return
    _written[task] = time.monotonic()
    _write(Heartbeat(task=task, ok_at=now, error="", lag_s=lag_s), ["ok_at", "error", "lag_s"])


def record_rest(tasks: Collection[str], *, now: datetime) -> None:
    """Note that tasks have nothing to do; a failure of a last run stays until one succeeds."""
    if time.monotonic() < _written.get(_ALL_AT_REST, float("-inf")) + WRITE_EVERY_S:
        return
    _written[_ALL_AT_REST] = time.monotonic()
    Heartbeat.objects.filter(task__in=tasks, error="").update(ok_at=now)


def record_failure(task: str, error: str, *, now: datetime) -> None:
    """Note that a task failed; its next success is written at once."""
    _written.pop(task, None)
    text = error.replace("\0", "")[:_ERROR_CHARS] or "It failed."
    _write(Heartbeat(task=task, failed_at=now, error=text), ["failed_at", "error"])


def _write(row: Heartbeat, fields: list[str]) -> None:
    Heartbeat.objects.bulk_create(
        [row], update_conflicts=True, unique_fields=["task"], update_fields=fields
    )


def read_heartbeats() -> Mapping[str, Heartbeat]:
    """All that were ever written, by task."""
    return {row.task: row for row in Heartbeat.objects.all()}


def find_period(task: str) -> timedelta:
    """How often the clock sends a task."""
    periods = (entry for entry in settings.CELERY_BEAT_SCHEDULE.values() if entry["task"] == task)
    return timedelta(seconds=float(next(periods)["schedule"]))


def is_late(row: Heartbeat | None, task: str, *, now: datetime) -> bool:
    """Whether a task has not succeeded for too long, or never."""
    if row is None or row.ok_at is None:
        return True
    return now - row.ok_at > LATE_PERIODS * find_period(task) + LATE_AFTER
