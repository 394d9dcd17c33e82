"""Jobs of admitted bids are opened, many at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction

from marketplace.common.clock import format_moment
from marketplace.common.queue import enqueue
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import slot_at, slot_ends_at
from marketplace.jobs.journal import serialize_event
from marketplace.jobs.models import EventKind, Job, JobEvent, JobStatus
from marketplace.jobs.services.deletion import note_adapter_use
from marketplace.webhooks.news import News
from marketplace.webhooks.outbox import add_messages
from scheduler.types import Cell


@dataclass(frozen=True, slots=True)
class Opening:
    """What a job is opened with."""

    #: A second opening of a bid is refused by the database.
    bid_id: str
    organisation_id: str
    created_by_id: str | None
    zone: Zone
    name: str
    #: ``derive_columns`` of its terms.
    columns: Mapping[str, Any]
    cells: tuple[Cell, ...]
    deadline_at: datetime
    price_micros: int
    #: Its data are prepared first; ``give_prepared_data`` says when they are.
    awaits_data: bool = False


def open_jobs(*, openings: Iterable[Opening], now: datetime) -> list[str]:
    """The jobs of many admitted bids, none of which has one yet, all or none; their keys.

    No page can follow a job before it is committed, so its first event is not published.
    """
    jobs = [_build_job(opening, now) for opening in openings]
    if not jobs:
        return []
    events = [_build_event(job, now) for job in jobs]
    with transaction.atomic():
        Job.objects.bulk_create(jobs)
        JobEvent.objects.bulk_create(events)
        starts = {job.start.job_id for job in jobs if job.start is not None}
        note_adapter_use(job_ids=starts, now=now)
        add_messages(news=[_build_news(event) for event in events], now=now)
        if any(job.cells[0][0] <= slot_at(job.zone, now) for job in jobs):
            # Others are dispatched when their first slot begins, by the beat.
            enqueue("jobs.slots_dispatch")
    return [job.pk for job in jobs]


#: A job's opening is its first event.
FIRST_SEQ = 1


def _build_job(opening: Opening, now: datetime) -> Job:
    if not opening.cells:
        raise ValueError(f"{opening.bid_id} was admitted without a cell")
    cells = serialize_cells(opening.cells)
    resumes = opening.columns["terms"].resumes
    step = 0 if resumes is None else resumes.step
    return Job(
        bid_id=opening.bid_id,
        organisation_id=opening.organisation_id,
        created_by_id=opening.created_by_id,
        zone=opening.zone,
        name=opening.name,
        cells=cells,
        deadline_at=opening.deadline_at,
        finish_planned_at=slot_ends_at(opening.zone, cells[-1][0]),
        price_micros=opening.price_micros,
        awaits_data=opening.awaits_data,
        created_at=now,
        seq=FIRST_SEQ,
        step=step,
        checkpoint_step=step,
        **opening.columns,
    )


def _build_event(job: Job, now: datetime) -> JobEvent:
    return JobEvent(
        job=job,
        seq=FIRST_SEQ,
        at=now,
        kind=EventKind.OPENED,
        message=f"Admitted; planned to finish by {format_moment(job.finish_planned_at)}.",
        data={"cells": job.cells},
    )


def _build_news(event: JobEvent) -> News:
    """The first event as webhooks get every other one."""
    data = serialize_event(event, status=JobStatus.QUEUED)
    return News(event.job.organisation_id, f"job.{event.kind}", {"id": event.job_id, **data})


def serialize_cells(cells: Iterable[Cell]) -> list[list[Any]]:
    """Cells as ``Job.cells`` stores them, in order of their slots."""
    value = sorted([cell.slot, cell.node] for cell in cells)
    slots = [slot for slot, _ in value]
    if len(set(slots)) != len(slots):
        raise ValueError("a job has two nodes in one slot")
    return value
