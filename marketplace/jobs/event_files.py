"""Events of jobs: rows at first; those of jobs that were settled long ago are in files.

A file has the events of some hundred jobs, each of which names it. It is stored, made to last, read
back and compared; only then one transaction lets the jobs name it and deletes the rows. What
happens to a job later is a row again, and readers put both together by ``seq``. Rows are read
first, so what is archived meanwhile is read from both and counted once.
"""

from __future__ import annotations

import json
import logging
import lzma
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from operator import attrgetter
from typing import Any

import pgtrigger
from django.db import transaction

from marketplace.common.archive_files import ArchiveUnreadable, read_lines
from marketplace.common.errors import Conflict
from marketplace.common.locks import advisory_session_lock
from marketplace.jobs.models import EventFile, Job, JobEvent

log = logging.getLogger(__name__)

#: Jobs of one file: a page of one job reads all of it.
JOBS_OF_FILE = 500
_COLUMNS = ("pk", "job_id", "seq", "at", "kind", "actor", "message", "data", "recorded_at")


@dataclass(frozen=True, slots=True)
class ArchivedEvents:
    """What one run moved."""

    files: int = 0
    jobs: int = 0
    events: int = 0
    bytes: int = 0


def read_events(
    job: Job, *, after_seq: int = 0, most: int | None = None, is_shown: bool = False
) -> list[JobEvent]:
    """Read what happened to a job after a ``seq``, in order; raises as ``read_archived``."""
    rows = JobEvent.objects.filter(job=job, seq__gt=after_seq).order_by("seq")[:most]
    return merge_events(list(rows), read_archived(job, is_shown=is_shown), after_seq)[:most]


def merge_events(
    rows: Iterable[JobEvent], archived: Iterable[JobEvent], after_seq: int = 0
) -> list[JobEvent]:
    """Put together what was read as rows and what was read from a file after them."""
    found = {event.seq: event for event in (*archived, *rows) if event.seq > after_seq}
    return sorted(found.values(), key=attrgetter("seq"))


def read_archived(job: Job, *, is_shown: bool = False) -> list[JobEvent]:
    """Read a job's events that are in a file; none where all are rows.

    The storage is asked over the network: call with no transaction open that others wait for.

    Parameters
    ----------
    job
    is_shown
        For a page, which does without them while the file cannot be read.

    Raises
    ------
    ArchiveUnreadable
        The file is lost, or is not what was archived.
    """
    if job.settled_at is None:
        return []
    stored = EventFile.objects.filter(pk__in=Job.objects.filter(pk=job.pk).values("event_file"))
    found = stored.first()
    if found is None:
        return []
    try:
        return _read_file(found, job_id=job.pk)
    except ArchiveUnreadable as error:
        if not is_shown:
            raise
        log.warning("the events of job %s cannot be read", job.pk, exc_info=error)
        return []


def archive_events(
    *, before: datetime, public_key: str, sign: Callable[[bytes], bytes], now: datetime
) -> ArchivedEvents:
    """Move the events of all jobs that were settled before a moment into files; call as the owner
    of the tables, outside of transactions.

    Raises
    ------
    Conflict
        ``archiving``: another run is at work. ``archive_failed``: the storage did not keep what it
        was given, or rows changed meanwhile.
    """
    done = ArchivedEvents()
    with advisory_session_lock("jobs.archive", "events", wait=False) as alone:
        if not alone:
            raise Conflict("archiving", "Events of jobs are being archived already.")
        settled = Job.objects.filter(settled_at__lt=before, event_file=None).order_by("pk")
        last = ""
        # Each goes on behind the last: those before are not looked at again.
        while job_ids := list(
            settled.filter(pk__gt=last).values_list("pk", flat=True)[:JOBS_OF_FILE]
        ):
            last = job_ids[-1]
            file = _archive(job_ids, public_key=public_key, sign=sign, now=now)
            done = ArchivedEvents(
                files=done.files + 1,
                jobs=done.jobs + file.jobs,
                events=done.events + file.events,
                bytes=done.bytes + file.bytes,
            )
        return done


def _archive(
    job_ids: Sequence[str], *, public_key: str, sign: Callable[[bytes], bytes], now: datetime
) -> EventFile:
    events = list(JobEvent.objects.filter(job__in=job_ids).order_by("job_id", "seq"))
    file = EventFile(jobs=len(job_ids), events=len(events), archived_at=now, public_key=public_key)
    file.store(_pack(events), place=f"archive/events/{now:%Y-%m}/", sign=sign)
    if _list_values(_read_file(file)) != _list_values(events):
        raise Conflict("archive_failed", f"The storage has {file.file.name} otherwise.")
    file.check_manifest()
    _replace_rows(file, job_ids, events)
    return file


def _replace_rows(file: EventFile, job_ids: Sequence[str], events: Sequence[JobEvent]) -> None:
    """Let the file take the place of the rows; what was stored stays where this fails.

    A commit whose answer was lost may have been one.
    """
    with pgtrigger.ignore("jobs.JobEvent:append_only"), transaction.atomic():
        file.save(force_insert=True)
        named = Job.objects.filter(pk__in=job_ids, event_file=None).update(event_file=file)
        rows = JobEvent.objects.filter(pk__in=[event.pk for event in events])
        same = _list_values(rows.order_by("job_id", "seq")) == _list_values(events)
        if named != len(job_ids) or not same or rows.delete()[0] != len(events):
            raise Conflict("archive_failed", "Events of jobs changed while they were archived.")


def _pack(events: Iterable[JobEvent]) -> bytes:
    """Write each event as a line of JSON, compressed; the first line says what it is."""
    lines = [json.dumps({"format": EventFile.FORMAT, "columns": _COLUMNS})]
    for values in _list_values(events):
        pk, job_id, seq, at, *others, recorded_at = values
        row = [pk, job_id, seq, at.isoformat(), *others, recorded_at.isoformat()]
        lines.append(json.dumps(row))
    return lzma.compress("\n".join(lines).encode(), preset=6)


def _read_file(file: EventFile, *, job_id: str = "") -> list[JobEvent]:
    """Read all events of a file, or those of one job; others' are not even parsed."""
    lines = islice(read_lines(file.file, sha256=file.sha256), 1, None)
    try:
        found = [_parse_line(line) for line in lines if job_id in line]
    except (ValueError, TypeError) as error:
        raise ArchiveUnreadable(f"the file {file.file.name}: {error}") from error
    # Others may name the job.
    return [event for event in found if job_id in ("", event.job_id)]


def _parse_line(line: str) -> JobEvent:
    event = JobEvent(**dict(zip(_COLUMNS, json.loads(line), strict=True)))
    event.at = datetime.fromisoformat(str(event.at))
    event.recorded_at = datetime.fromisoformat(str(event.recorded_at))
    return event


def _list_values(events: Iterable[JobEvent]) -> list[tuple[Any, ...]]:
    return [tuple(getattr(event, name) for name in _COLUMNS) for event in events]
