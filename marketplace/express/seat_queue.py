"""Jobs that wait for a seat: planned again with every newcomer, and when a seat comes free early.

A job has the cells of its seat from its planned start to its deadline, or to the start of the next
job there. Only jobs that have not begun are moved, and never past their deadlines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from marketplace.auction.lane.enter import enter_lane
from marketplace.express.models import ExpressLane, ExpressRequest
from marketplace.express.seats import HeldSeat, SeatedJob, load_seats
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import slot_at, slot_ends_at
from marketplace.jobs.models import Job
from marketplace.jobs.services import replace_job_cells
from scheduler.auction.log import events
from scheduler.prompts.answers import build_question, build_waiting_question, plan_waiting
from scheduler.prompts.gangs import GangRules
from scheduler.prompts.jobs import Course, TuningJob
from scheduler.prompts.planning import Promise
from scheduler.prompts.rules import LaneRules
from scheduler.types import Cell

_EARLIER = "A seat of the lane came free; the job starts sooner."
_MOVED = "Planned again with a job whose deadline is earlier; its own deadline stands."
_SHORTENED = "The seat is promised to the next job once this one is to have ended."


def find_rules(zone: Zone) -> LaneRules:
    """A job that waits runs on one seat, and the next one there begins in a later slot."""
    return LaneRules(
        max_gpus=1,
        connect_s=0.0,
        exchange_share=0.0,
        round_s=float(zone.slot_s),
        predicted_gain=1.0,
    )


@dataclass(frozen=True, slots=True)
class PlannedSeats:
    """Seats that may be given out, and the jobs that may be moved between them."""

    seats: dict[str, HeldSeat]
    #: When each seat is free of all but these jobs.
    free_at: dict[str, datetime]
    movable: dict[str, SeatedJob]


@dataclass(frozen=True, slots=True)
class TakenCells:
    """The cells of its seats that a job gets, each with the bid that holds it."""

    #: Chains of its seats; several only for a gang.
    roots: tuple[str, ...]
    cells: tuple[tuple[str, Cell], ...]


def divide_waiting(zone: Zone, seats: Iterable[HeldSeat], *, latest_at: datetime) -> PlannedSeats:
    """Divide what waits on these seats into jobs that may go to any of them, and others.

    Jobs on a seat where one has a deadline beyond ``latest_at``, which some seat does not reach,
    or further seats, stay there, and the seat is free after them.
    """
    planned = PlannedSeats({}, {}, {})
    for seat in seats:
        planned.seats[seat.name] = seat
        planned.free_at[seat.name] = seat.free_at
        if all(job.due_at <= latest_at and not job.is_gang for job in seat.waiting):
            planned.movable.update((job.bid_id, job) for job in seat.waiting)
        else:
            planned.free_at[seat.name] = _find_free_after_all(zone, seat)
    return planned


def _find_free_after_all(zone: Zone, seat: HeldSeat) -> datetime:
    """When a seat is free of everything that is promised there."""
    if not seat.waiting:
        return seat.free_at
    return slot_ends_at(zone, max(job.cells[-1].slot for job in seat.waiting))


@dataclass(frozen=True, slots=True)
class LaneClock:
    """Seconds from a moment, which a question counts in."""

    zone: Zone
    base: datetime

    def read(self, at: datetime) -> float:
        return (at - self.base).total_seconds()

    def tell(self, seconds: float) -> datetime:
        return self.base + timedelta(seconds=seconds)

    def list_seats(self, planned: PlannedSeats) -> list[tuple[str, float]]:
        return [(name, self.read(at)) for name, at in planned.free_at.items()]

    def describe_gangs(self, seats: Iterable[HeldSeat], rules: GangRules) -> dict[str, Any] | None:
        """What a question says of gangs; nothing where none is sold."""
        if rules.most < 2:
            return None
        free = [
            [seat.name, seat.cells[0][1].node, self.read(_find_free_after_all(self.zone, seat))]
            for seat in seats
        ]
        return asdict(rules) | {"seats": sorted(free)}

    def list_promises(self, planned: PlannedSeats) -> list[Promise]:
        """What movable jobs were promised: the seat's time that each was certified."""
        return [self._promise(job) for job in planned.movable.values()]

    def _promise(self, job: SeatedJob) -> Promise:
        request = job.request
        tuning = TuningJob(
            job.bid_id,
            self.zone.base_model_name,
            self.read(request.created_at),
            float(request.answer["slo_s"]),
            request.work_s,
            request.lookup_s,
        )
        start_s = self.read(slot_ends_at(self.zone, job.cells[0].slot - 1))
        course = Course(bool(request.answer["looks_up"]), job.run_s, 0.0)
        return Promise(tuning, 1, course, start_s, start_s + job.run_s)


@dataclass(frozen=True, slots=True)
class AskedLane:
    """A question to the lane, with the seats it is about."""

    clock: LaneClock
    planned: PlannedSeats
    question: dict[str, Any]


def build_lane_question(
    *,
    zone: Zone,
    seats: Iterable[HeldSeat],
    job: TuningJob,
    base: datetime,
    price: Mapping[str, Any],
    gangs: GangRules,
    now: datetime,
) -> AskedLane:
    """What the lane is asked for a job that came at ``base``: of the seats, those that reach its
    deadline."""
    due_at = base + timedelta(seconds=job.slo_s)
    reaching = [seat for seat in seats if slot_ends_at(zone, seat.last_slot) >= due_at]
    latest_at = min((slot_ends_at(zone, seat.last_slot) for seat in reaching), default=base)
    clock = LaneClock(zone, base)
    planned = divide_waiting(zone, reaching, latest_at=latest_at)
    question = build_question(
        job,
        clock.list_promises(planned),
        clock.list_seats(planned),
        clock.read(now),
        rules=find_rules(zone),
        latest_s=clock.read(latest_at),
        price=price,
        gangs=clock.describe_gangs(reaching, gangs),
    )
    return AskedLane(clock, planned, question)


def choose_cells(
    clock: LaneClock,
    planned: PlannedSeats,
    places: Sequence[Sequence[Any]],
    *,
    due_at: Mapping[str, datetime],
) -> dict[str, TakenCells]:
    """The cells of every job in a plan whose cells change, by the plan's name for it.

    ``due_at`` has the deadlines of jobs that are not among the planned ones yet.
    """
    zone = clock.zone
    by_seat: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for name, seat, start_s, _ in places:
        by_seat[seat].append((slot_at(zone, clock.tell(start_s)), name))
    taken: dict[str, TakenCells] = {}
    for seat_name, jobs in by_seat.items():
        seat = planned.seats[seat_name]
        jobs.sort()
        if seat.running is not None and seat.running.cells[-1].slot >= jobs[0][0]:
            taken[seat.running.bid_id] = _cut(seat, seat.running, jobs[0][0])
        for place, (first, name) in enumerate(jobs):
            known = planned.movable.get(name)
            last = slot_at(zone, due_at[name] if known is None else known.due_at)
            if place + 1 < len(jobs):
                last = min(last, jobs[place + 1][0] - 1)
            cells = tuple(one for one in seat.cells if first <= one[1].slot <= last)
            if known is None or tuple(cell for _, cell in cells) != known.cells:
                before = taken.get(name, TakenCells((), ()))
                taken[name] = TakenCells((*before.roots, seat.root), (*before.cells, *cells))
    return taken


def _cut(seat: HeldSeat, job: SeatedJob, before: int) -> TakenCells:
    cells = tuple(one for one in seat.cells if one[1] in job.cells and one[1].slot < before)
    return TakenCells((seat.root,), cells)


def move_jobs(planned: PlannedSeats, taken: Mapping[str, TakenCells], *, now: datetime) -> None:
    """Write down the cells of jobs that a plan moved. Call in the lane."""
    running = {seat.running.bid_id: seat.running for seat in planned.seats.values() if seat.running}
    for bid_id, found in taken.items():
        before = planned.movable.get(bid_id) or running[bid_id]
        job = Job.objects.select_related("zone").get(pk=before.job_id)
        cells = [cell for _, cell in found.cells]
        if bid_id in running:
            reason = _SHORTENED
        else:
            reason = _EARLIER if cells[0].slot < before.cells[0].slot else _MOVED
        replace_job_cells(job=job, cells=cells, reason=reason, now=now)
        # Its last slot may end sooner or later: it is late only beyond the SLO.
        Job.objects.filter(pk=job.pk).update(finish_planned_at=job.deadline_at)
        ExpressRequest.objects.filter(bid_id=bid_id).update(seat_bid_id=found.roots[0])


@dataclass(frozen=True, slots=True)
class _ForwardPlan:
    """Jobs that wait, planned again on the seats as they are; some begin sooner."""

    asked: AskedLane
    answer: dict[str, Any]
    taken: dict[str, TakenCells]


def bring_forward(lane_terms: ExpressLane, *, now: datetime) -> int:
    """Give seats that came free before their time to jobs that wait; how many were moved."""
    if _plan_forward(lane_terms, now=now) is None:
        return 0
    with enter_lane(zone=lane_terms.zone, now=now) as lane:
        # As they are now that nothing else can change them.
        plan = _plan_forward(lane_terms, now=now)
        if plan is None:
            return 0
        lane.apply(
            events.ExpressPlanned(
                question=plan.asked.question,
                answer=plan.answer,
                moved={name: one.cells for name, one in plan.taken.items()},
            )
        )
        move_jobs(plan.asked.planned, plan.taken, now=now)
    return len(plan.taken)


def _plan_forward(lane_terms: ExpressLane, *, now: datetime) -> _ForwardPlan | None:
    """Plan the jobs that wait on the seats as they are; ``None`` where none begins sooner."""
    zone = lane_terms.zone
    seats = load_seats(lane_terms, now=now)
    dues = [job.due_at for seat in seats for job in seat.waiting]
    if not dues:
        return None
    seats = [seat for seat in seats if slot_ends_at(zone, seat.last_slot) >= max(dues)]
    clock = LaneClock(zone, now)
    planned = divide_waiting(zone, seats, latest_at=max(dues))
    question = build_waiting_question(
        clock.list_promises(planned),
        clock.list_seats(planned),
        0.0,
        rules=find_rules(zone),
    )
    answer = plan_waiting(question)
    taken = choose_cells(clock, planned, answer["moved"], due_at={})
    if not any(_is_sooner(planned.movable.get(name), one) for name, one in taken.items()):
        return None
    return _ForwardPlan(AskedLane(clock, planned, question), answer, taken)


def _is_sooner(before: SeatedJob | None, taken: TakenCells) -> bool:
    return before is not None and taken.cells[0][1].slot < before.cells[0].slot
