"""What happened to a job and what was measured, as one list, newest first.

Ids say where an item stands in the list, so a page begins after one without another look.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Q, QuerySet
from rest_framework import serializers as s

from marketplace.api.answers import Answer, ConstantText, UnixTime
from marketplace.api.models import FineTuningRequest
from marketplace.api.openai.lists import invalid_cursor
from marketplace.jobs.event_files import read_archived
from marketplace.jobs.loss_curves import Point, read_archive
from marketplace.jobs.models import EventKind, Job, JobEvent, MetricPoint
from marketplace.tracking.models import TrackedRun, TrackingService
from marketplace.tracking.services import list_bid_runs

EVENT_ID_PATTERN = r"ftevent-([0-9a-f]{1,14})-([em])([0-9]{1,18})"
_ID = re.compile(EVENT_ID_PATTERN)
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
#: Of two items of one moment the later one of this order is the newer.
_POINT, _EVENT = "e", "m"
#: Of a job that asks for an integration which its owner has given no key for.
NOT_CONNECTED = (
    "Nothing is sent to {service}: your organisation had no key for it. Set one under "
    "/settings/tracking."
)
_LEVELS: Mapping[str, str] = {
    EventKind.NODE_LOST: "warn",
    EventKind.FAULT: "warn",
    EventKind.FAILED: "error",
}


class LogItem(NamedTuple):
    """An event or a measurement of a job."""

    id: str
    created_at: datetime
    level: str
    message: str
    type: str
    data: Mapping[str, Any]


class FineTuningJobEventSerializer(Answer):
    id = s.CharField()
    object = ConstantText("fine_tuning.job.event")
    created_at = UnixTime()
    level = s.ChoiceField(["info", "warn", "error"], help_text="How grave it is.")
    message = s.CharField(help_text="What happened, as a sentence.")
    type = s.ChoiceField(["message", "metrics"], help_text="metrics: data has measurements.")
    data = s.DictField(help_text="Measurements, or what else is known.")


def list_job_log(job: Job, *, after: str | None, limit: int) -> list[LogItem]:
    """The newest items, or the first ones after an id.

    Raises
    ------
    UserError
        ``invalid_cursor``.
    """
    place = None if after is None else _parse_id(after)
    events = _list_events(job, place, limit)
    points = _list_points(job, place, limit)
    items = [(event.at, _EVENT, event.pk, event) for event in events]
    items += [(point.at, _POINT, point.id, point) for point in points]
    items.sort(key=lambda item: item[:3], reverse=True)
    tracking = _describe_tracking(job)
    return [
        _word_event(row, tracking) if isinstance(row, JobEvent) else _word_point(job, row)
        for *_, row in items[:limit]
    ]


def _describe_tracking(job: Job) -> str:
    """What becomes of the job's measurements elsewhere; empty where nothing was asked for."""
    asked = FineTuningRequest.objects.filter(bid_id=job.bid_id).exclude(integrations=[]).first()
    if asked is None:
        return ""
    runs = {run.service: run for run in list_bid_runs(job.bid_id)}
    services = sorted({integration["type"] for integration in asked.integrations})
    return " ".join(_describe_run(TrackingService(of), runs.get(of)) for of in services)


def _describe_run(service: TrackingService, run: TrackedRun | None) -> str:
    if run is None:
        return NOT_CONNECTED.format(service=service.label)
    if run.reason:
        ended = "Nothing more is sent" if run.ended_at else "It is tried again"
        return f"Not all is at {service.label}: {run.reason.rstrip('.')}. {ended}."
    return f"Measurements go to {service.label}, {run.url or f'project {run.project}'}."


def _list_events(job: Job, place: tuple[datetime, str, int] | None, limit: int) -> list[JobEvent]:
    """The newest events behind a place, wherever they are."""
    rows = list(_newest(JobEvent.objects.filter(job=job), _EVENT, place)[:limit])
    archived = {event.pk: event for event in (*read_archived(job, is_shown=True), *rows)}
    behind = (e for e in archived.values() if place is None or (e.at, _EVENT, e.pk) < place)
    return sorted(behind, key=lambda e: (e.at, e.pk), reverse=True)[:limit]


def _list_points(job: Job, place: tuple[datetime, str, int] | None, limit: int) -> list[Point]:
    """The newest measurements behind a place, wherever they are."""
    rows = _newest(MetricPoint.objects.filter(job=job), _POINT, place)
    if points := [Point(*row) for row in rows.values_list(*Point._fields)[:limit]]:
        return points
    archived = (((p.at, _POINT, p.id), p) for p in read_archive(job.pk, is_shown=True))
    behind = [item for item in archived if place is None or item[0] < place]
    return [point for _, point in sorted(behind, reverse=True)[:limit]]


def _newest(
    rows: QuerySet[Any], kind: str, place: tuple[datetime, str, int] | None
) -> QuerySet[Any]:
    """Rows of one kind behind a place, newest first."""
    if place is not None:
        at, other, pk = place
        same = Q(at=at) if kind < other else Q(at=at, pk__lt=pk) if kind == other else Q(pk__lt=0)
        rows = rows.filter(Q(at__lt=at) | same)
    return rows.order_by("-at", "-pk")


def _name(at: datetime, kind: str, pk: int) -> str:
    micros = (at - _BEGINNING) // timedelta(microseconds=1)
    return f"ftevent-{micros:x}-{kind}{pk}"


def _parse_id(text: str) -> tuple[datetime, str, int]:
    found = _ID.fullmatch(text)
    if found is None:
        raise invalid_cursor()
    try:
        at = _BEGINNING + timedelta(microseconds=int(found[1], 16))
    except OverflowError:
        raise invalid_cursor() from None
    return at, found[2], int(found[3])


def _word_event(event: JobEvent, tracking: str) -> LogItem:
    message = event.message
    if event.kind == EventKind.OPENED and tracking:
        message = f"{message} {tracking}"
    return LogItem(
        id=_name(event.at, _EVENT, event.pk),
        created_at=event.at,
        level=_LEVELS.get(event.kind, "info"),
        message=message,
        type="message",
        data={"kind": event.kind, **event.data},
    )


def _word_point(job: Job, point: Point) -> LogItem:
    names = ("train_loss", "valid_loss", "learning_rate", "grad_norm", "tokens_per_s")
    figures = {name: value for name in names if (value := getattr(point, name)) is not None}
    total = "" if job.total_steps is None else f"/{job.total_steps}"
    losses = [
        f"{words}={figures[name]:.4f}"
        for name, words in (("train_loss", "training loss"), ("valid_loss", "validation loss"))
        if name in figures
    ]
    place = {"step": point.step, "total_steps": job.total_steps, "epoch": point.epoch}
    return LogItem(
        id=_name(point.at, _POINT, point.id),
        created_at=point.at,
        level="info",
        message=f"Step {point.step}{total}: {', '.join(losses) or 'no loss measured'}",
        type="metrics",
        data=place | figures,
    )
