"""Jobs of admitted bids are opened, many at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from marketplace.common.clock import format_moment
from marketplace.common.db.bulk_writes import JsonText, insert_values
from marketplace.common.db.pipeline import ensure_transaction
from marketplace.common.queue import enqueue
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import slot_at, slot_ends_at
from marketplace.jobs.journal import serialize_event
from marketplace.jobs.models import EventKind, Job, JobEvent, JobStatus, job_id
from marketplace.webhooks.outbox import News, add_messages
from scheduler.types import Cell


@dataclass(frozen=True, slots=True)
class Opening:
    """What a job is opened with."""

    #: A second opening of a bid is refused by the database.
    bid_id: str
    organisation_id: str
    created_by_id: str | None
    zone: Zone
    dataset_id: str
    name: str
    #: As ``Job.spec``.
    spec: dict[str, Any] | JsonText
    cells: tuple[Cell, ...]
    deadline_at: datetime
    price_micros: int
    #: Its data are prepared first; ``give_prepared_data`` says when they are.
    awaits_data: bool = False
    validation_dataset_id: str | None = None
    #: As in ``Job``.
    verified_only: bool = False


def open_jobs(*, openings: Iterable[Opening], now: datetime) -> list[str]:
    """The jobs of many admitted bids, none of which has one yet, all or none; their keys.

    No page can follow a job before it is committed, so its first event is not published.
    """
    opened = [_OpenedEvent(job_id(), opening) for opening in openings]
    if not opened:
        return []
    with ensure_transaction():
        insert_values(Job, _JOB_COLUMNS, (_build_job_values(of, now) for of in opened))
        insert_values(JobEvent, _EVENT_COLUMNS, (_build_event_values(of, now) for of in opened))
        add_messages(news=[_build_news(of, now) for of in opened], now=now)
        if any(of.cells[0][0] <= slot_at(of.opening.zone, now) for of in opened):
            # Others are dispatched when their first slot begins, by the beat.
            enqueue("jobs.slots_dispatch")
    return [of.job_id for of in opened]


#: A job's opening is its first event.
_FIRST_SEQ = 1
_JOB_COLUMNS = (
    "id",
    "bid_id",
    "organisation_id",
    "created_by_id",
    "zone_id",
    "dataset_id",
    "validation_dataset_id",
    "name",
    "spec",
    "cells",
    "deadline_at",
    "finish_planned_at",
    "price_micros",
    "awaits_data",
    "verified_only",
    "created_at",
    "seq",
)
_EVENT_COLUMNS = ("job_id", "seq", "at", "kind", "message", "data")


class _OpenedEvent:
    """A job on its way into the database."""

    def __init__(self, job_id: str, opening: Opening) -> None:
        if not opening.cells:
            raise ValueError(f"{opening.bid_id} was admitted without a cell")
        self.job_id, self.opening = job_id, opening
        self.cells = serialize_cells(opening.cells)
        self.finish_planned_at = slot_ends_at(opening.zone, self.cells[-1][0])


def _build_job_values(of: _OpenedEvent, now: datetime) -> tuple[Any, ...]:
    opening = of.opening
    return (
        of.job_id,
        opening.bid_id,
        opening.organisation_id,
        opening.created_by_id,
        opening.zone.pk,
        opening.dataset_id,
        opening.validation_dataset_id,
        opening.name,
        opening.spec,
        of.cells,
        opening.deadline_at,
        of.finish_planned_at,
        opening.price_micros,
        opening.awaits_data,
        opening.verified_only,
        now,
        _FIRST_SEQ,
    )


def _build_event_values(of: _OpenedEvent, now: datetime) -> tuple[Any, ...]:
    message = f"Admitted; planned to finish by {format_moment(of.finish_planned_at)}."
    return (of.job_id, _FIRST_SEQ, now, EventKind.OPENED, message, {"cells": of.cells})


def _build_news(of: _OpenedEvent, now: datetime) -> News:
    """The first event as webhooks get every other one."""
    values = dict(zip(_EVENT_COLUMNS, _build_event_values(of, now), strict=True))
    event_data = serialize_event(JobEvent(**values), status=JobStatus.QUEUED)
    return News(
        of.opening.organisation_id, f"job.{EventKind.OPENED}", {"id": of.job_id, **event_data}
    )


def serialize_cells(cells: Iterable[Cell]) -> list[list[Any]]:
    """Cells as ``Job.cells`` stores them, in order of their slots."""
    value = sorted([cell.slot, cell.node] for cell in cells)
    slots = [slot for slot, _ in value]
    if len(set(slots)) != len(slots):
        raise ValueError("a job has two nodes in one slot")
    return value
