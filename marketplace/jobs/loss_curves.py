"""A job's measurements: rows at first, one compressed file from a day after its money is settled.

A row takes some 480 bytes with its indexes, and a long job has thousands of them. Who reads them
sees no difference: rows are looked for first, and the file only where there are none.
"""

from __future__ import annotations

import gzip
import io
import json
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

#: Also the name of the Celery task.
ARCHIVE = "jobs.archive_loss_curve"
#: Whoever watched the job has seen its end by then.
ARCHIVED_AFTER = timedelta(days=1)


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


def read_points(job_id: str, *, newest: int | None = None, after: int = 0) -> list[Point]:
    """A job's measurements in the order of their arrival: the newest, or those after an id."""
    rows = MetricPoint.objects.filter(job=job_id, pk__gt=after).order_by("-pk")
    points = [Point(*row) for row in rows.values_list(*Point._fields)[:newest]]
    # Only then the file: the rows go in the transaction that it comes with.
    points = points[::-1] or [point for point in read_archive(job_id) if point.id > after]
    return points if newest is None else points[-newest:]


def read_archive(job_id: str) -> list[Point]:
    """The measurements of a job that are in a file; none where they are rows."""
    curve = LossCurve.objects.filter(job=job_id).first()
    if curve is None:
        return []
    with curve.file.open("rb") as file:
        return _unpack(file.read())


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
    path = f"jobs/{work.key}/loss_curves/{new_id('curve')}.json.gz"
    with store_file(path, io.BytesIO(content)) as name:
        return StoredLossCurve(name, len(points), len(content))


def replace_points(
    work: HeldWork, points: Sequence[Point], stored: StoredLossCurve, *, now: datetime
) -> None:
    """Let the file take the place of the rows, unless the job was deleted meanwhile."""
    lock_job(work.key)
    rows = MetricPoint.objects.filter(job=work.key)
    if find_deletion(Subject.JOB, work.key) is not None or rows.count() != stored.points:
        transaction.on_commit(partial(discard_loss_curve, stored), robust=True)
        return
    LossCurve.objects.create(
        job_id=work.key,
        file=stored.name,
        points=stored.points,
        bytes=stored.bytes,
        archived_at=now,
    )
    rows.delete()


def discard_loss_curve(stored: StoredLossCurve) -> None:
    """Delete a file that no row names."""
    default_storage.delete(stored.name)
