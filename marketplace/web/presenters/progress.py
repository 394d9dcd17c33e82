"""A job's work against what was promised, and an earlier run to compare it with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from marketplace.auction.models import Bid
from marketplace.fleet.selectors import slot_starts_at
from marketplace.jobs.event_files import read_events
from marketplace.jobs.loss_curves import Point
from marketplace.jobs.models import EventKind, Job, JobStatus
from marketplace.jobs.selectors import load_metric_series
from marketplace.web.presenters.timeline import RibbonNode

#: Points of a line that stands beside others.
LINE_POINTS = 160


def serialize_plan(bid: Bid, job: Job, machines: Mapping[str, RibbonNode]) -> dict[str, Any]:
    """What ``frontend/web/src/job/charts.ts`` calls ``PlanData``; times in unix seconds."""
    earlier = find_earlier_run(job)
    return {
        "begun": bid.created_at.timestamp(),
        "deadline": job.deadline_at.timestamp(),
        "planned": compute_planned_progress(bid, machines),
        "earlier": earlier
        and {
            "name": earlier.name,
            "loss": sample_losses(load_metric_series(earlier, is_shown=True)),
        },
        "moves": find_moves(job, machines),
    }


def find_moves(job: Job, machines: Mapping[str, RibbonNode]) -> list[tuple[int, str]]:
    """The steps at which the job went on on another machine, and that machine's name."""
    events = read_events(job, is_shown=True)
    starts = [event.data for event in events if event.kind == EventKind.STARTED]
    found: list[tuple[int, str]] = []
    before: str | None = None
    for data in starts:
        node = data.get("node")
        if before is not None and node != before and node in machines:
            found.append((int(data.get("step", 0)), machines[node].name))
        before = node
    return found


def compute_planned_progress(
    bid: Bid, machines: Mapping[str, RibbonNode]
) -> list[tuple[float, float]]:
    """Shares of the work done by the ends of the slots that the decision gave the job.

    A slot's work is the rate of its node's GPU type when the bid arrived (s_ik), as the auction
    counted it; the last slot may be needed in part.
    """
    done = 0.0
    points = [(bid.created_at.timestamp(), 0.0)]
    for slot, node in bid.cells or ():
        machine = machines.get(node)
        starts_at = slot_starts_at(bid.zone, slot).timestamp()
        if starts_at > points[-1][0]:
            points.append((starts_at, _share(done, bid)))
        done += bid.rates.get(machine.gpu, 0.0) if machine else 0.0
        points.append((slot_starts_at(bid.zone, slot + 1).timestamp(), _share(done, bid)))
    return points


def _share(done: float, bid: Bid) -> float:
    return min(1.0, done / bid.compute_demand) if bid.compute_demand else 1.0


def find_earlier_run(job: Job) -> Job | None:
    """The newest finished job of the same owner on the same model and data."""
    return (
        Job.objects.filter(
            organisation_id=job.organisation_id,
            zone_id=job.zone_id,
            dataset__sha256=job.dataset.sha256,
            status=JobStatus.SUCCEEDED,
            created_at__lt=job.created_at,
        )
        .order_by("-pk")
        .first()
    )


def sample_losses(series: Sequence[Point]) -> list[tuple[int, float]]:
    """Steps and training losses, thinned to a line that a chart can hold."""
    known = [(point.step, point.train_loss) for point in series if point.train_loss is not None]
    every = max(1, -(-len(known) // LINE_POINTS))
    return known[::every]


def compute_done_share(job: Job | None) -> float | None:
    """The share of its steps that a job has done; ``None`` before it knows how many there are."""
    if job is None or not job.total_steps:
        return None
    if job.status == JobStatus.SUCCEEDED:
        return 1.0
    return min(1.0, job.step / job.total_steps)


def compute_left_s(job: Job | None, now: datetime) -> float | None:
    """Seconds until a running job is done, by its own estimate."""
    if job is None or job.eta_at is None or not job.is_active:
        return None
    return max(0.0, (job.eta_at - now).total_seconds())
