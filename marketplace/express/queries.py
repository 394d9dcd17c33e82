"""The lane's own SQL: what is asked so often that composing a query costs more than its answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from marketplace.auction.models import Reservation
from marketplace.common.db.rows import read_rows
from marketplace.express.models import ExpressLane, ExpressRequest, RequestStatus, Seat
from marketplace.jobs.queries import build_recent_jobs
from scheduler.types import Cell


def was_short(*, zone_id: str, since: datetime) -> bool:
    """Whether an open lane of a zone said no to somebody since a moment."""
    lanes = ExpressLane.objects.filter(zone=zone_id, is_open=True)
    said_no = ExpressRequest.objects.filter(
        zone=zone_id,
        created_at__gt=since,
        status__in=[RequestStatus.OFFERED, RequestStatus.REFUSED],
    )
    return lanes.exists() and said_no.exists()


class SeatRow(NamedTuple):
    """A bid of the lane, as ``Seat`` has it."""

    bid_id: str
    root: str
    is_burst: bool
    first_slot: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class JobRow:
    """A certified job that has not ended, or did lately."""

    job_id: str
    organisation_id: str
    cells: tuple[Cell, ...]
    started_at: datetime | None
    finished_at: datetime | None
    #: Chains of its further seats, if it is a gang.
    further_roots: tuple[str, ...]
    #: The ``REQUEST_FIELDS`` of its request.
    request: Sequence[Any]


#: What is read of a job's request, in the order of the model's fields.
REQUEST_FIELDS = ("id", "work_s", "lookup_s", "created_at", "answer", "bid_id", "seat_bid_id")


@dataclass(frozen=True, slots=True)
class LaneRows:
    """All that an answer goes by but the request itself."""

    seats: list[SeatRow]
    #: Bid, slot and node.
    cells: list[tuple[str, int, str]]
    jobs: list[JobRow]


def fetch_lane_rows(*, zone_id: str, slot: int, lately: datetime) -> LaneRows:
    """A lane's seats from a slot on, their cells, and the jobs that have not ended or ended since a
    moment."""
    held = Seat.objects.filter(lane=zone_id, last_slot__gte=slot)
    seats = [SeatRow(*row) for row in held.values_list(*SeatRow._fields)]
    cells = Reservation.objects.filter(
        bid__in=[seat.bid_id for seat in seats], slot__gte=slot, released_at=None
    )
    recent, values = build_recent_jobs(zone_id=zone_id, since=lately)
    return LaneRows(
        seats,
        list(cells.values_list("bid_id", "slot", "node_id")),
        [_read_job(*row) for row in read_rows(_JOBS.format(recent=recent), values)],
    )


def _read_job(*row: Any) -> JobRow:
    job_id, owner, cells, started_at, finished_at, further, answer, *request = row
    request.insert(REQUEST_FIELDS.index("answer"), json.loads(answer))
    held = tuple(Cell(slot=slot, node=node) for slot, node in json.loads(cells))
    return JobRow(job_id, owner, held, started_at, finished_at, tuple(further), request)


#: A request's id is that of its bid with another prefix: its primary key is looked up, and the
#: requests of the past are not read.
_JOBS = f"""
SELECT job.id, job.organisation_id, job.cells::text, job.started_at, job.finished_at,
    ARRAY(SELECT root FROM express_gangseat WHERE request_id = asked.id ORDER BY id),
    asked.answer::text,
    asked.id, asked.work_s, asked.lookup_s, asked.created_at, asked.bid_id, asked.seat_bid_id
FROM ({{recent}}) AS job
JOIN express_expressrequest AS asked ON asked.id = 'express' || substr(job.bid_id, 4)
WHERE asked.status = '{RequestStatus.ADMITTED}'
"""  # noqa: S608
