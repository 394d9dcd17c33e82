"""Reserved slots of warm starts, back on sale once a validation shows the run at its target."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Q

from marketplace.auction.book.reservations import release_reservations
from marketplace.auction.lane.enter import enter_lane
from marketplace.auction.lane.lane import Lane
from marketplace.auction.models import Bid
from marketplace.fleet.models import Node, Zone
from marketplace.jobs.models import EventKind, Job
from marketplace.jobs.services import replace_job_cells
from marketplace.jobs.work import load_work_plan
from scheduler.auction.log import events
from scheduler.types import Cell

_GIVEN_BACK = "The warm start is where it was expected; slots reserved in case are given back."


def give_back_spare_cells(*, now: datetime) -> int:
    """Put cells that warm starts at their target do not need back on sale; of how many jobs."""
    running = Job.objects.filter(
        status__in=Job.ACTIVE,
        needs_replan=False,
        step__gt=0,
        valid_loss__isnull=False,
        terms__start__steps__gt=0,
    )
    ahead = [job for job in running.select_related("zone").order_by("pk") if _is_ahead(job)]
    given = 0
    for zone in {job.zone for job in ahead}:
        with enter_lane(zone=zone, now=now) as lane:
            given += sum(_give_back(lane, job) for job in ahead if job.zone == zone)
    return given


def _is_ahead(job: Job) -> bool:
    start = job.start
    if start is None or start.target_loss is None or job.valid_loss is None:
        return False
    return job.step <= start.sold_steps and job.valid_loss <= start.target_loss


def _give_back(lane: Lane, job: Job) -> bool:
    coming = [Cell(slot, node) for slot, node in job.cells if slot >= lane.first_free_slot]
    spare = _find_spare(lane.zone, job, coming)
    if not spare:
        return False
    # The job goes on, at the price that it was sold for.
    lane.apply(events.CellsReleased(task_id=job.bid_id, cells=tuple(spare), paid_share=1.0))
    slots = [cell.slot for cell in spare]
    release_reservations(bid_id=job.bid_id, which=Q(slot__in=slots), now=lane.now)
    kept = [cell for cell in coming if cell not in spare]
    # A run ahead of its plan spares a cell more from time to time: one decision, said once.
    is_said = job.events.filter(kind=EventKind.REPLANNED).order_by("-seq").first()
    reason = "" if is_said is not None and is_said.message == _GIVEN_BACK else _GIVEN_BACK
    replace_job_cells(job=job, cells=kept, reason=reason, now=lane.now)
    return True


def _find_spare(zone: Zone, job: Job, coming: list[Cell]) -> list[Cell]:
    """Coming cells after those in which the steps that were sold are done.

    The present slot is not counted on: a job with steps left has one more cell than it may need.
    """
    start = job.start
    assert start is not None
    plan = load_work_plan(job)
    left = float(plan.count_ended_at(start.steps) - plan.count_until(job.step))
    rates = Bid.objects.values_list("rates", flat=True).get(pk=job.bid_id)
    types = dict(Node.objects.filter(zone=zone).values_list("pk", "gpu_type_id"))
    for at, cell in enumerate(coming):
        if left <= 0:
            return coming[at:]
        left -= rates.get(types.get(cell.node, ""), 0.0)
    return []
