"""Where a stream stands now, as one value.

A snapshot and the events after it always equal a later snapshot. The browser applies events
(``frontend/web/src/job/state.ts``), and tests compare the two. The poll fallback and the websocket
give the same value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.db import connection, transaction

from marketplace.accounts.models import ApiKey, Scope, User
from marketplace.accounts.policy import check_scope, check_second_factor
from marketplace.auction.lane.decisions import build_decision_news
from marketplace.auction.models import Bid, MarketHead
from marketplace.common.errors import NotFound
from marketplace.fleet.selectors import get_open_zone
from marketplace.jobs.event_files import merge_events, read_archived
from marketplace.jobs.journal import serialize_event, serialize_progress
from marketplace.jobs.loss_curves import read_archive, read_rows
from marketplace.jobs.models import Job, JobEvent

#: Decisions a market page lists.
DECISIONS_SHOWN = 8
#: Lines of a job's log a page keeps.
LOG_SHOWN = 200


@contextmanager
def _one_moment() -> Iterator[None]:
    """All reads inside see the database as of one moment."""
    nested = connection.in_atomic_block
    with transaction.atomic():
        if not nested:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield


def find_job_for(*, watcher: User | AnonymousUser | ApiKey | None, job_id: str) -> Job:
    """The job, if the person or the program may see it.

    Raises
    ------
    NotFound
        ``unknown_job``, whether there is none or it is another organisation's.
    NotAllowed
        As ``check_scope`` of a key; ``second_factor_missing`` of a person.
    """
    jobs = Job.objects.filter(pk=job_id)
    if isinstance(watcher, ApiKey):
        check_scope(watcher, Scope.JOBS_READ)
        jobs = jobs.filter(organisation=watcher.organisation)
    elif watcher is None or isinstance(watcher, AnonymousUser):
        jobs = jobs.none()
    else:
        check_second_factor(watcher)
        if not watcher.is_operator:
            jobs = jobs.filter(organisation__memberships__user=watcher)
    job = jobs.first()
    if job is None:
        raise NotFound("unknown_job", f"There is no job {job_id} that you may see.")
    return job


def find_job_seq(*, job_id: str) -> int:
    return Job.objects.values_list("seq", flat=True).get(pk=job_id)


def load_job_snapshot(*, watcher: User | ApiKey | None, job_id: str) -> dict[str, Any]:
    with _one_moment():
        job = find_job_for(watcher=watcher, job_id=job_id)
        points = read_rows(job.pk)
        rows = list(JobEvent.objects.filter(job=job))
    # A file never changes, and its storage may take long to answer.
    points = points or read_archive(job.pk, is_shown=True)
    events = merge_events(rows, read_archived(job, is_shown=True))
    return {
        "type": "snapshot",
        "seq": job.seq,
        "job_id": job.pk,
        "status": str(job.status),
        "progress": serialize_progress(job),
        "points": extend_series([], (point._asdict() for point in points)),
        "events": [serialize_event(event) for event in events],
        "log": [line for point in points for line in point.log][-LOG_SHOWN:],
    }


#: What a chart needs of a progress event.
POINT_FIELDS = ("at", "step", "epoch", "train_loss", "valid_loss", "learning_rate", "grad_norm")


def extend_series(
    series: Sequence[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Append points to a rising series; steps done again replace what was reported before."""
    rising = [dict(point) for point in series]
    for point in new:
        while rising and rising[-1]["step"] > point["step"]:
            rising.pop()
        kept = {name: point.get(name) for name in POINT_FIELDS}
        rising.append(kept | {"at": _iso(kept["at"])})
    return rising


def _iso(at: Any) -> Any:
    """As an event gives it; rows of the database hold a moment."""
    return at.isoformat() if isinstance(at, datetime) else at


def find_market_seq(*, zone_name: str) -> int:
    head = MarketHead.objects.filter(zone__name=zone_name).values_list("seq", flat=True).first()
    return head or 0


def load_market_snapshot(*, zone_name: str) -> dict[str, Any]:
    with _one_moment():
        zone = get_open_zone(zone_name)
        head = MarketHead.objects.filter(zone=zone).first()
        decided = Bid.objects.filter(zone=zone, position__isnull=False).order_by("-position")
        return {
            "type": "snapshot",
            "seq": head.seq if head else 0,
            "zone": zone.name,
            "position": head.position if head else 0,
            "head_hash": head.head_hash if head else "",
            "slot": head.slot if head else None,
            "decisions": [build_decision_news(bid) for bid in decided[:DECISIONS_SHOWN]],
        }
