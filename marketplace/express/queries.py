"""The lane's own SQL: what is asked so often that composing a query costs more than its answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from marketplace.auction.queries import build_held_cells
from marketplace.common.db.model_query import ModelQuery
from marketplace.common.db.pipeline import Statement, fetch
from marketplace.express.models import ExpressRequest, RequestStatus
from marketplace.jobs.queries import build_recent_jobs
from scheduler.types import Cell


def build_shortage_check(*, zone_id: str, since: datetime) -> Statement:
    """Whether an open lane of a zone said no to somebody since a moment: one row."""
    return Statement(_SHORTAGE_CHECK, (zone_id, zone_id, since))


_SHORTAGE_CHECK = """
SELECT EXISTS (SELECT FROM express_expresslane WHERE zone_id = %s AND is_open) AND EXISTS (
    SELECT FROM express_expressrequest
    WHERE zone_id = %s AND created_at > %s AND status IN ('offered', 'refused')
)
"""


def has_waiting_requests(*, zone_id: str) -> bool:
    """Whether requests of a zone wait for an answer."""
    [[(found,)]] = fetch(Statement(_WAITING, (zone_id,)))
    return found


_WAITING = f"""
SELECT EXISTS (
    SELECT FROM express_expressrequest
    WHERE zone_id = %s AND status = '{RequestStatus.PENDING}'
)
"""  # noqa: S608


def find_by_key(*, organisation_id: str, key: str | None) -> list[ExpressRequest]:
    """An organisation's request under an idempotency key, if there is one."""
    return _BY_KEY.read(*fetch(_BY_KEY.build_statement(organisation_id, key)))


def find_by_key_and_count(request: ExpressRequest) -> tuple[list[ExpressRequest], int]:
    """The same of a request that is not stored yet, and how many of its organisation's wait in its
    zone; in one message."""
    same, [(waiting,)] = fetch(
        _BY_KEY.build_statement(request.organisation_id, request.idempotency_key),
        Statement(_COUNT_WAITING, (request.zone_id, request.organisation_id)),
    )
    return _BY_KEY.read(same), waiting


_BY_KEY = ModelQuery(ExpressRequest, "WHERE organisation_id = %s AND idempotency_key = %s")
_COUNT_WAITING = f"""
SELECT count(*) FROM express_expressrequest
WHERE zone_id = %s AND organisation_id = %s AND status = '{RequestStatus.PENDING}'
"""  # noqa: S608


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
    moment; in one message."""
    recent = build_recent_jobs(zone_id=zone_id, since=lately)
    seats, cells, jobs = fetch(
        Statement(_SEATS, (zone_id, slot)),
        build_held_cells(of=Statement(_SEAT_BIDS, (zone_id, slot)), first_slot=slot),
        Statement(_JOBS.format(recent=recent.text), recent.values),
    )
    return LaneRows([SeatRow(*row) for row in seats], cells, [_read_job(*row) for row in jobs])


def _read_job(*row: Any) -> JobRow:
    job_id, owner, cells, started_at, finished_at, further, answer, *request = row
    request.insert(REQUEST_FIELDS.index("answer"), json.loads(answer))
    held = tuple(Cell(slot=slot, node=node) for slot, node in json.loads(cells))
    return JobRow(job_id, owner, held, started_at, finished_at, tuple(further), request)


_SEATS = """
SELECT bid_id, root, is_burst, first_slot, created_at FROM express_seat
WHERE lane_id = %s AND last_slot >= %s
"""
_SEAT_BIDS = "SELECT bid_id FROM express_seat WHERE lane_id = %s AND last_slot >= %s"
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
