"""A worker beside the lane looks for plans that put late jobs in time.

It plans on a replica of the zone, then enters the lane. The plan is taken only if it keeps more
promises and nothing it was made from has changed: the slot, the cells of every job in it, and the
room. No promise that stands is broken, and no price moves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import OperationalError

from marketplace.auction.book import engine_cache as books
from marketplace.auction.lane.enter import enter_lane, is_lock_timeout
from marketplace.auction.lane.lane import Lane
from marketplace.auction.lane.plan_changes import (
    PlanDoesNotFit,
    PlannedJob,
    find_held_cells,
    list_movable_jobs,
    measure_work_left,
    move_plans,
)
from marketplace.auction.lane.replan import explain_move, replan_jobs
from marketplace.auction.models import Bid, MarketHead
from marketplace.common.locks import advisory_session_lock
from marketplace.common.queue import enqueue
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import load_rates, slot_at
from marketplace.jobs.models import Job
from marketplace.jobs.selectors import (
    list_late_jobs,
    list_nodes_to_avoid,
    list_zones_with_late_jobs,
)
from marketplace.jobs.services import request_job_replan
from scheduler.auction import Engine
from scheduler.auction.joint.least_laxity import JointPlan, plan_by_laxity
from scheduler.auction.log import events
from scheduler.types import Cell

log = logging.getLogger(__name__)

LOCK = "auction.plans"


@dataclass(frozen=True, slots=True)
class ZoneView:
    """A zone as plans are made from it."""

    zone: Zone
    #: A replica; its own to change.
    engine: Engine
    #: First slot whose cells may change.
    first_slot: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan and the jobs it was made for."""

    plan: JointPlan
    jobs: tuple[PlannedJob, ...]
    #: First slot that it may use.
    first_slot: int
    #: Tasks of the late jobs.
    late: frozenset[str]


def request_better_plans() -> None:
    """Ask for a better plan in every zone that has late jobs."""
    for zone_id in list_zones_with_late_jobs():
        enqueue("auction.plans_improve", expires_s=60.0, zone_id=zone_id)


def improve_plans(*, zone_id: str, clock: Callable[[], datetime]) -> int:
    """Put late jobs in time, as many as can be; how many jobs have new plans.

    One worker at a time; a second one returns at once.
    """
    with advisory_session_lock(LOCK, zone_id, wait=False) as alone:
        if not alone or not MarketHead.objects.filter(zone=zone_id).exists():
            return 0
        zone = Zone.objects.get(pk=zone_id)
        proposal = find_plan_for_late_jobs(view_zone(zone, now=clock()))
        return 0 if proposal is None else adopt_plan(zone, proposal, now=clock())


def view_zone(zone: Zone, *, now: datetime) -> ZoneView:
    """A replica of the zone as the lane would find it now."""
    with books.read_book(zone=zone, now=now) as book:
        engine = book.engine.replica()
    slot = max(slot_at(zone, now), engine.horizon.first_slot)
    if slot > engine.horizon.first_slot:
        # As the lane will, before it takes the plan.
        engine.transition(events.SlotAdvanced(slot))
    return ZoneView(zone=zone, engine=engine, first_slot=slot + 1)


def find_plan_for_late_jobs(view: ZoneView) -> Proposal | None:
    """Put as many late jobs as can be in time, by moving others; ``None`` if none can be."""
    zone, first = view.zone, view.first_slot
    held = find_held_cells(view.engine, first_slot=first)
    late = [
        one
        for one in _measure(zone, list_late_jobs(zone), held)
        if one.promise.deadline_slot >= first
    ]
    if not late:
        return None
    lost = [one.promise for one in late]
    others = list_movable_jobs(zone=zone, engine=view.engine, first_slot=first, beside=lost)
    movable = [one.promise for one in others]
    plan = plan_by_laxity(view.engine, lost=lost, movable=movable, slot=first)
    if not plan.kept:
        return None
    ids = frozenset(job.task_id for job in lost)
    return Proposal(plan=plan, jobs=(*late, *others), first_slot=first, late=ids)


def _measure(
    zone: Zone, jobs: Sequence[Job], held: Mapping[str, tuple[Cell, ...]]
) -> list[PlannedJob]:
    """Jobs with their bids, what is left of them, and the cells they hold."""
    bids = Bid.objects.in_bulk([job.bid_id for job in jobs])
    rates = load_rates(zone) if jobs else None
    return [
        PlannedJob(
            job=job,
            bid=bids[job.bid_id],
            promise=measure_work_left(zone=zone, job=job, bid=bids[job.bid_id], rates=rates),
            held=held.get(job.bid_id, ()),
        ).avoiding(list_nodes_to_avoid(job))
        for job in jobs
    ]


def adopt_plan(zone: Zone, proposal: Proposal, *, now: datetime) -> int:
    """Let the lane take a plan, if it still fits; how many jobs have new cells."""
    plan = proposal.plan
    try:
        with enter_lane(zone=zone, now=now) as lane:
            if not _is_as_planned(lane, proposal):
                return 0
            try:
                move_plans(
                    lane,
                    plan,
                    proposal.jobs,
                    explain=lambda move: explain_move(move, is_hit=move.task_id in proposal.late),
                )
            except PlanDoesNotFit as error:
                # A bid came between and has the room.
                log.info("zone %s: a plan does not fit any more: %s", zone.name, error)
                return 0
            _replan_given_up(lane, proposal)
    except OperationalError as error:
        if not is_lock_timeout(error):
            raise
        log.info("zone %s: another lane is at work; a plan is dropped", zone.name)
        return 0
    return len(plan.moves)


def _is_as_planned(lane: Lane, proposal: Proposal) -> bool:
    """Whether the slot and every job of the plan are what they were when it was made."""
    if lane.first_free_slot != proposal.first_slot:
        return False
    named = {move.task_id for move in proposal.plan.moves} | set(proposal.plan.given_up)
    jobs = [one for one in proposal.jobs if one.promise.task_id in named]
    now = Job.objects.in_bulk([one.job.pk for one in jobs])
    held = find_held_cells(lane.book.engine, first_slot=lane.first_free_slot)
    return all(
        one.held == held.get(one.promise.task_id, ())
        and all(getattr(one.job, name) == getattr(now[one.job.pk], name) for name in _SEEN)
        for one in jobs
    )


#: What of a job a plan is made from, besides its work.
_SEEN = ("status", "needs_replan", "started_at", "cells")


def _replan_given_up(lane: Lane, proposal: Proposal) -> None:
    """Plan jobs that stay late again: their cells are others' now."""
    if not proposal.plan.given_up:
        return
    for one in proposal.jobs:
        if one.promise.task_id in proposal.plan.given_up:
            request_job_replan(
                job=one.job,
                reason="Its cells went to jobs that are in time with them; looking for others.",
                now=lane.now,
            )
    Bid.objects.filter(pk__in=proposal.plan.given_up).update(replanned_slot=None)
    replan_jobs(lane)
