"""Why are jobs late? What a job passes through, in its order, and how far behind each part is.

A job is decided, has its data prepared, gets cells, is dispatched to a node, trains there, and is
settled. What is behind early on makes everything after it late, so the first part that is behind
is the answer. Shown by ``/operator/health`` and ``manage.py doctor``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Exists, F, Min, OuterRef, Q, QuerySet

from marketplace.auction.models import WAITS_SINCE, Bid, BidStatus
from marketplace.auction.probes import LANE_TASK, LONGEST_WAIT, WORKER_TASK
from marketplace.common.heartbeats import is_late, is_watched, read_heartbeats
from marketplace.common.models import Heartbeat
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import list_open_zones, slot_at, slot_starts_at
from marketplace.jobs.models import Job, JobStatus, NodePlan, Slice, SliceStatus

#: A task that waited longer for a worker, or work that nobody takes up in that time, is behind.
SOON = timedelta(seconds=30)
#: A running job is heard several times in this time, however slow its steps are.
HEARD_WITHIN = timedelta(minutes=3)
#: The lane plans again within seconds, and settles as soon as a job has ended.
HANDLED_WITHIN = timedelta(minutes=1)
LISTED = 25


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a job's way."""

    label: str
    #: Jobs, bids or tasks that are there now, and how many of them are there for too long.
    there: int
    behind: int
    #: The longest that one of them has been there; ``None`` where that is not measured.
    longest: timedelta | None
    #: What it means that it is behind, and where to look.
    text: str

    @property
    def is_ok(self) -> bool:
        return not self.behind

    @property
    def longest_s(self) -> float | None:
        return None if self.longest is None else self.longest.total_seconds()


@dataclass(frozen=True, slots=True)
class LateJob:
    """A job that runs past its deadline, or will."""

    job: Job
    why: str


@dataclass(frozen=True, slots=True)
class Lateness:
    """The answer, the parts it rests on, and the jobs that are late now."""

    active: int
    #: Active jobs past their deadline, and those that will end after it by plan or by their speed.
    late: int
    will_be_late: int
    stages: tuple[Stage, ...]
    jobs: tuple[LateJob, ...]

    @property
    def answer(self) -> str:
        """One sentence: whether jobs are late, and what is behind first."""
        count = self.late + self.will_be_late
        said = f"{count:,} of {self.active:,} jobs are late or will be." if count else ""
        broken = next((stage for stage in self.stages if not stage.is_ok), None)
        if broken is None:
            return (
                f"{said} Every part of a job's way is on time now."
                if said
                else ("No job is late, and every part of a job's way is on time.")
            )
        return f"{said} {broken.label} come first: {broken.text}".strip()


def explain_lateness(*, now: datetime) -> Lateness:
    """Look through a job's way for what is behind; a few queries for each open zone."""
    active = Job.objects.filter(status__in=Job.ACTIVE)
    past = active.filter(deadline_at__lt=now)
    coming = active.filter(deadline_at__gte=now).filter(_WILL_BE_LATE)
    zones = list(list_open_zones())
    listed = past.union(coming).values_list("pk").order_by("pk")
    late = active.filter(pk__in=[pk for (pk,) in listed[:LISTED]])
    return Lateness(
        active=active.count(),
        late=past.count(),
        will_be_late=coming.count(),
        stages=(
            *_look_at_tasks(read_heartbeats(), now=now),
            _look_at_bids(now),
            _look_at_data(active, now),
            _look_at_plans(active, now),
            _look_at_dispatch(zones, now),
            _look_at_nodes(now),
            _look_at_silence(now),
            _look_at_pace(active),
            _look_at_settlement(now),
        ),
        jobs=tuple(
            LateJob(job, explain_job(job, now=now))
            for job in late.select_related("zone", "organisation").order_by("deadline_at", "pk")
        ),
    )


_WILL_BE_LATE = (
    Q(needs_replan=True)
    | Q(finish_planned_at__gt=F("deadline_at"))
    | Q(eta_at__gt=F("deadline_at"))
)


def explain_job(job: Job, *, now: datetime) -> str:
    """Say in one sentence what a late job waits for, or why it takes longer."""
    if job.awaits_data:
        return "Its data are not prepared yet."
    if job.awaits_fault_check:
        return "A node blamed its data, and another one checks that."
    if job.needs_replan:
        return f"It waits for new cells: {job.replan_reason or 'its plan ran out'}"
    running = Slice.objects.filter(job=job, status=SliceStatus.OPEN).first()
    if running is None:
        slot = slot_at(job.zone, now)
        if job.node_in(slot) is not None:
            return "It has a cell now, and no node has taken it."
        return "It waits for its next cell."
    if running.lease_expires_at < now:
        return "Its node's lease has run out, and nobody has ended it."
    if (job.progressed_at or running.opened_at) < now - HEARD_WITHIN:
        return "Its node reports nothing."
    if job.eta_at is not None and job.eta_at > job.finish_planned_at:
        return "It trains more slowly than it was sold for."
    return "It trains as planned; its plan ends after the deadline."


def _look_at_tasks(beats: Mapping[str, Heartbeat], *, now: datetime) -> list[Stage]:
    """How long the clock's tasks waited for a worker, by queue, and which of them came to none."""
    stages: list[Stage] = []
    watched = {task: row for task, row in beats.items() if is_watched(task)}
    for queue, shown in (("lane", LANE_TASK), ("default", WORKER_TASK)):
        of_queue = {task: row for task, row in watched.items() if _find_queue(task) == queue}
        lags = [timedelta(seconds=row.lag_s) for row in of_queue.values() if row.lag_s is not None]
        late = sum(
            is_late(row, task, now=now) or timedelta(seconds=row.lag_s or 0.0) > SOON
            for task, row in of_queue.items()
        )
        silent = is_late(beats.get(shown), shown, now=now)
        stages.append(
            Stage(
                label=f"Tasks of the queue {queue}",
                there=len(of_queue),
                behind=max(late, int(silent)),
                longest=max(lags, default=None),
                text=f"no process takes the queue {queue}, or its processes cannot keep up.",
            )
        )
    return stages


def _find_queue(task: str) -> str:
    return settings.CELERY_TASK_ROUTES.get(task, {"queue": "default"})["queue"]


def _find_age(waiting: QuerySet[Any], since: str, now: datetime) -> timedelta | None:
    """For how long the first of some rows has waited; ``None``: there is none."""
    first = waiting.aggregate(first=Min(since))["first"]
    return None if first is None else now - first


def _look_at_bids(now: datetime) -> Stage:
    waiting = Bid.objects.filter(status=BidStatus.PENDING).annotate(since=WAITS_SINCE)
    return Stage(
        label="Bids without an answer",
        there=waiting.count(),
        behind=waiting.filter(since__lt=now - LONGEST_WAIT).count(),
        longest=_find_age(waiting, "since", now),
        text="the lane does not decide; its log says why.",
    )


def _look_at_data(active: QuerySet[Job], now: datetime) -> Stage:
    waiting = active.filter(Q(awaits_data=True) | Q(awaits_fault_check=True))
    return Stage(
        label="Jobs without their data",
        there=waiting.count(),
        # A plan made for after the preparation ends in time by itself.
        behind=waiting.filter(_WILL_BE_LATE | Q(deadline_at__lt=now)).count(),
        longest=_find_age(waiting, "created_at", now),
        text="vendors or the workers of the queue preparation are late; see Vendors.",
    )


def _look_at_plans(active: QuerySet[Job], now: datetime) -> Stage:
    waiting = active.filter(needs_replan=True)
    return Stage(
        label="Jobs without cells",
        there=waiting.count(),
        behind=waiting.filter(replan_wanted_at__lt=now - HANDLED_WITHIN).count(),
        longest=_find_age(waiting, "replan_wanted_at", now),
        text="the lane finds no room for them: nodes are gone, or the zone is sold out.",
    )


def _look_at_dispatch(zones: list[Zone], now: datetime) -> Stage:
    """Jobs whose cell has begun and that no lease was opened for."""
    there, since = 0, []
    has_lease = Exists(Slice.objects.filter(job=OuterRef("pk"), status=SliceStatus.OPEN))
    for zone in zones:
        slot = slot_at(zone, now)
        begun = Job.objects.filter(
            Job.MAY_START, ~has_lease, zone=zone, status__in=Job.ACTIVE, cells__contains=[[slot]]
        )
        count = begun.filter(needs_replan=False).count()
        there += count
        since += [now - slot_starts_at(zone, slot)] * count
    return Stage(
        label="Jobs with a cell and no lease",
        there=there,
        behind=sum(passed > SOON for passed in since),
        longest=max(since, default=None),
        text="slots are not dispatched (jobs.slots_dispatch), or their nodes are silent.",
    )


def _look_at_nodes(now: datetime) -> Stage:
    plans = NodePlan.objects.filter(taken_at=None, ends_at__gt=now).exclude(lease_tokens=[])
    return Stage(
        label="Plans that no node has fetched",
        there=plans.count(),
        behind=plans.filter(made_at__lt=now - SOON).values("node_id").distinct().count(),
        longest=_find_age(plans, "made_at", now),
        text="nodes do not reach the market, or web servers do not answer them; see Providers.",
    )


def _look_at_silence(now: datetime) -> Stage:
    leases = Slice.objects.filter(status=SliceStatus.OPEN)
    unheard = Q(job__progressed_at__lt=now - HEARD_WITHIN) | Q(job__progressed_at=None)
    quiet = leases.filter(
        Q(lease_expires_at__lt=now) | (unheard & Q(opened_at__lt=now - HEARD_WITHIN))
    )
    return Stage(
        label="Leases under which nothing is reported",
        there=leases.count(),
        behind=quiet.count(),
        longest=_find_age(quiet, "job__progressed_at", now),
        text="nodes are silent or stuck, or their reports fail; see Providers.",
    )


def _look_at_pace(active: QuerySet[Job]) -> Stage:
    running = active.filter(status=JobStatus.RUNNING, eta_at__isnull=False)
    slow = running.filter(eta_at__gt=F("deadline_at"))
    ends = [eta - deadline for eta, deadline in slow.values_list("eta_at", "deadline_at")[:1000]]
    return Stage(
        label="Jobs too slow for their deadline",
        there=running.count(),
        behind=slow.count(),
        longest=max(ends, default=None),
        text="nodes are slower than they were sold; the lane plans such jobs again.",
    )


def _look_at_settlement(now: datetime) -> Stage:
    waiting = Job.objects.filter(finished_at__isnull=False, settled_at__isnull=True)
    return Stage(
        label="Ended jobs without a settlement",
        there=waiting.count(),
        behind=waiting.filter(finished_at__lt=now - HANDLED_WITHIN).count(),
        longest=_find_age(waiting, "finished_at", now),
        text="the workers do not settle, or money could not be moved; see Money.",
    )
