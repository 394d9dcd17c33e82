"""A job's measurements: rows at first, one compressed file from a day after its money is settled.

A row takes some 480 bytes with its indexes, and a long job has thousands of them. Who reads them
sees no difference: rows are looked for first, and the file only where there are none. Pages do
without a curve while the storage does not answer; what its owner takes away is whole or fails.
"""

from __future__ import annotations

import gzip
import io
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from django.core.files.storage import default_storage
from django.db import transaction

from marketplace.accounts.erasure import find_deletion
from marketplace.accounts.models import Subject
from marketplace.common.durable.kinds import HeldWork
from marketplace.common.durable.services import NewWork
from marketplace.common.ids import new_id
from marketplace.jobs.locks import lock_job
from marketplace.jobs.models import Job, LossCurve, MetricPoint
from marketplace.jobs.spooling import store_file

log = logging.getLogger(__name__)

#: Also the name of the Celery task.
ARCHIVE = "jobs.archive_loss_curve"
#: Whoever watched the job has seen its end by then.
ARCHIVED_AFTER = timedelta(days=1)
#: How long a job waits whose rows were not those that its file has.
_AGAIN_AFTER = timedelta(hours=1)


class Point(NamedTuple):
    """A measurement, as ``MetricPoint`` describes it; from ``at`` on it is its owner's."""

    id: int
    slice_id: str
    seq: int
    at: datetime
    step: int
    epoch: float
    train_loss: float | None
    valid_loss: float | None
    learning_rate: float | None
    grad_norm: float | None
    tokens_per_s: float | None
    samples_per_s: float | None
    memory_gb: float | None
    log: list[str]


def read_points(
    job_id: str, *, newest: int | None = None, after: int = 0, is_shown: bool = False
) -> list[Point]:
    """A job's measurements in the order of their arrival: the newest, or those after an id.

    Raises as ``read_archive`` does.
    """
    points = read_rows(job_id, newest=newest, after=after)
    # Only then the file: the rows go in the transaction that it comes with.
    archived = [] if points else read_archive(job_id, is_shown=is_shown)
    points = points or [point for point in archived if point.id > after]
    return points if newest is None else points[-newest:]


def read_rows(job_id: str, *, newest: int | None = None, after: int = 0) -> list[Point]:
    """The measurements of a job that are rows; none where they are in a file."""
    rows = MetricPoint.objects.filter(job=job_id, pk__gt=after).order_by("-pk")
    return [Point(*row) for row in rows.values_list(*Point._fields)[:newest]][::-1]


def read_archive(job_id: str, *, is_shown: bool = False) -> list[Point]:
    """The measurements of a job that are in a file; none where they are rows.

    The storage is asked over the network: call with no transaction open that others wait for.

    Parameters
    ----------
    is_shown
        For a page, which has no curve while the file cannot be read.

    Raises
    ------
    OSError
        The file cannot be read. One that went with its job's deletion has no measurements.
    """
    curve = LossCurve.objects.filter(job=job_id).first()
    if curve is None:
        return []
    try:
        with curve.file.open("rb") as file:
            return _unpack(file.read())
    except Exception as error:
        is_gone = isinstance(error, FileNotFoundError)
        if is_gone and find_deletion(Subject.JOB, job_id) is not None:
            return []
        if not is_shown:
            raise
        log.warning("the measurements of job %s cannot be read", job_id, exc_info=error)
        return []


def write_loss_curve(job_id: str) -> Iterator[bytes]:
    """Write a job's measurements as JSON lines, for its owner."""
    for point in read_points(job_id):
        shown = {name: getattr(point, name) for name in Point._fields[3:]}
        yield json.dumps(shown | {"at": point.at.isoformat()}).encode() + b"\n"


def _pack(points: Sequence[Point]) -> bytes:
    """Each figure's values one after the other, which compresses better than point by point."""
    columns = dict(zip(Point._fields, zip(*points, strict=True), strict=True))
    columns["at"] = tuple(at.isoformat() for at in columns["at"])
    return gzip.compress(json.dumps(columns, separators=(",", ":")).encode(), mtime=0)


def _unpack(content: bytes) -> list[Point]:
    columns: dict[str, Any] = json.loads(gzip.decompress(content))
    columns["at"] = [datetime.fromisoformat(at) for at in columns["at"]]
    return [Point(*row) for row in zip(*(columns[name] for name in Point._fields), strict=True)]


def build_archiving(job: Job, *, now: datetime) -> NewWork:
    """The work of putting a settled job's measurements into a file."""
    return NewWork(ARCHIVE, job.pk, due_at=now + ARCHIVED_AFTER, owner=job.organisation_id)


@dataclass(frozen=True, slots=True)
class StoredLossCurve:
    """A file that no row names yet."""

    name: str
    points: int
    bytes: int


def load_points(work: HeldWork) -> list[Point] | None:
    """Read the rows of a job; ``None`` where there are none, or the job is being deleted."""
    if find_deletion(Subject.JOB, work.key) is not None:
        return None
    rows = MetricPoint.objects.filter(job=work.key).order_by("pk")
    return [Point(*row) for row in rows.values_list(*Point._fields)] or None


def store_loss_curve(work: HeldWork, points: Sequence[Point]) -> StoredLossCurve:
    """Store the file."""
    content = _pack(points)
    path = f"{_find_folder(work.key)}/{new_id('curve')}.json.gz"
    with store_file(path, io.BytesIO(content)) as name:
        return StoredLossCurve(name, len(points), len(content))


def replace_points(
    work: HeldWork, points: Sequence[Point], stored: StoredLossCurve, *, now: datetime
) -> datetime | None:
    """Let the file take the place of the rows, unless they or the job are others by now."""
    lock_job(work.key)
    rows = MetricPoint.objects.filter(job=work.key)
    is_deleted = find_deletion(Subject.JOB, work.key) is not None
    if is_deleted or rows.count() != stored.points:
        transaction.on_commit(partial(discard_loss_curve, stored), robust=True)
        return None if is_deleted else now + _AGAIN_AFTER
    LossCurve.objects.create(
        job_id=work.key,
        file=stored.name,
        points=stored.points,
        bytes=stored.bytes,
        archived_at=now,
    )
    rows.delete()
    return None


def discard_loss_curve(stored: StoredLossCurve) -> None:
    """Delete a file that no row names."""
    default_storage.delete(stored.name)


def remove_loss_curves(job_id: str) -> None:
    """Delete all files of a job's measurements: a worker that died leaves one that no row names."""
    folder = _find_folder(job_id)
    try:
        _, names = default_storage.listdir(folder)
    except FileNotFoundError:
        return
    for name in filter(None, names):
        default_storage.delete(f"{folder}/{name}")


def _find_folder(job_id: str) -> str:
    return f"jobs/{job_id}/loss_curves"
