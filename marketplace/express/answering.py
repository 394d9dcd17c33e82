"""The lane's answers: one writer per zone, in its log, with all that follows in one transaction.

Every answer is worked out by ``scheduler.prompts.answers`` from a question that goes into the
zone's log with it. An admitted job becomes a bid that won at the posted price, and a job in the
cells of its seat. The job starts at once or waits for the seat; jobs that wait are planned with it,
earliest deadline first. A lane that dies in between has answered nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists

from marketplace.auction.lane import wakeups
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.enter import enter_lane
from marketplace.auction.lane.lane import Lane
from marketplace.auction.models import Bid, BidStatus
from marketplace.express.bank import prepare_lookup, read_features
from marketplace.express.fair_share import find_share, limit_seats
from marketplace.express.gangs import count_wanted_seats, find_gang_rules, limit_gang
from marketplace.express.locks import lock_requests
from marketplace.express.models import ExpressLane, ExpressRequest, GangSeat, RequestStatus
from marketplace.express.seat_queue import (
    AskedLane,
    TakenCells,
    build_lane_question,
    choose_cells,
    move_jobs,
)
from marketplace.express.seats import LaneState, buy_seats, load_lane_state, was_burst_refused
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import slot_at
from marketplace.jobs.models import Job
from marketplace.jobs.services import Opening, open_jobs
from marketplace.jobs.terms import derive_columns
from marketplace.payments.holds import HoldSettlement, settle_holds
from scheduler.auction import ChainEntry
from scheduler.auction.log import events
from scheduler.prompts.admission import LaneAnswer
from scheduler.prompts.answers import answer_question
from scheduler.prompts.gangs import GangRules
from scheduler.prompts.jobs import TuningJob
from scheduler.types import Cell
from workers.protocol.job_spec import AdapterSpec, TrainingSpec
from workers.protocol.job_terms import JobTerms
from workers.protocol.wire import from_json

log = logging.getLogger(__name__)

#: Requests of one transaction; more wait for the next.
BATCH_LIMIT = 64


@dataclass(frozen=True, slots=True)
class _AnsweredRequest:
    request: ExpressRequest
    answer: dict[str, Any]
    cells: tuple[Cell, ...]


def answer_requests(*, zone_id: str, now: datetime) -> int:
    """Answer the requests that wait in a zone, in fair order; how many.

    Where a request finds all seats taken, and the operator's bound allows more, the lane first bids
    for a burst of unsold cells.
    """
    waiting = ExpressRequest.objects.filter(zone=zone_id, status=RequestStatus.PENDING)
    lane = ExpressLane.objects.select_related("zone").filter(Exists(waiting), zone=zone_id)
    lane_terms = lane.first()
    if lane_terms is None:
        return 0
    answered = _answer_waiting(lane_terms, may_buy=True, now=now)
    if answered is None:
        decide_pending_bids(zone=lane_terms.zone, now=now)
        answered = _answer_waiting(lane_terms, may_buy=False, now=now)
    return answered or 0


def answer_between_batches(zone: Zone, clock: Callable[[], datetime]) -> int:
    """The same where the lane is at work on a crowd of bids; how many."""
    if not ExpressRequest.objects.filter(zone=zone, status=RequestStatus.PENDING).exists():
        return 0
    return answer_requests(zone_id=zone.pk, now=clock())


def _answer_waiting(lane_terms: ExpressLane, *, may_buy: bool, now: datetime) -> int | None:
    """Answer what waits; ``None``: nothing yet, since seats were bid for first."""
    zone = lane_terms.zone
    with enter_lane(zone=zone, now=now) as lane:
        waiting = lock_requests(_list_waiting(zone), limit=BATCH_LIMIT)
        state = load_lane_state(lane_terms, now=now)
        if may_buy and _buy_burst(lane_terms, waiting, state, now=now):
            return None
        answered: list[_AnsweredRequest] = []
        gangs = find_gang_rules(lane_terms)
        for request in _order_fairly(waiting, state.held):
            if answered and answered[-1].cells:
                # The last job took a seat, and may have moved others.
                state = load_lane_state(lane_terms, now=now)
            answered.append(_answer(lane, lane_terms, request, state=state, gangs=gangs))
        settle_holds(settlements=[_conclude(of) for of in answered], now=now)
        wakeups.notify_decided(bid_ids=[of.request.pk for of in answered])
    return len(answered)


def _list_waiting(zone: Zone):
    return ExpressRequest.objects.filter(zone=zone, status=RequestStatus.PENDING).order_by(
        "created_at", "pk"
    )


def _buy_burst(
    lane: ExpressLane, asked: Sequence[ExpressRequest], state: LaneState, *, now: datetime
) -> bool:
    """Bid for seats where more requests wait than seats are idle; whether any was bid for.

    A request that only a gang keeps counts as all its seats. Requests beyond an organisation's
    share count for nothing: they would not get a seat.
    """
    room, waiting = find_share(lane.most_seats), []
    taken = Counter(state.held)
    for request in _order_fairly(asked, taken):
        taken[request.organisation_id] += count_wanted_seats(request)
        if taken[request.organisation_id] <= room:
            waiting.append(request)
    wanted = sum(count_wanted_seats(request) for request in waiting)
    idle = sum(seat.idle_since is not None for seat in state.seats)
    short = min(wanted - idle, lane.most_seats - len(state.seats))
    if short < 1:
        return False
    first = slot_at(lane.zone, now) + 1
    due_at = max(request.created_at + timedelta(seconds=request.slo_s) for request in waiting)
    last = max(first, slot_at(lane.zone, due_at) + 1)
    if was_burst_refused(lane, first_slot=first, last_slot=last, now=now):
        return False
    return bool(
        buy_seats(lane, first_slot=first, last_slot=last, count=short, is_burst=True, now=now)
    )


def _order_fairly(
    waiting: Iterable[ExpressRequest], active: Mapping[str, int]
) -> list[ExpressRequest]:
    """Organisations with fewest jobs in the lane first; of each the earliest deadline first."""
    taken = Counter(active)
    ordered: list[ExpressRequest] = []
    left = list(waiting)
    while left:
        following = min(
            left,
            key=lambda one: (
                taken[one.organisation_id],
                one.created_at + timedelta(seconds=one.slo_s),
                one.pk,
            ),
        )
        taken[following.organisation_id] += 1
        left.remove(following)
        ordered.append(following)
    return ordered


def _answer(
    lane: Lane,
    terms: ExpressLane,
    request: ExpressRequest,
    *,
    state: LaneState,
    gangs: GangRules,
) -> _AnsweredRequest:
    """Answer one request and write what follows, but for the money. Call in the lane."""
    asked = _build_question(terms, request, state=state, gangs=gangs, now=lane.now)
    answer = answer_question(asked.question)
    bid_id = request.planned_bid_id
    taken = _choose_cells(request, asked, answer)
    own_cells = taken.pop(request.pk, None)
    seated = () if own_cells is None else own_cells.cells
    # The seats of a gang are places of one node.
    cells = tuple(dict.fromkeys(cell for _, cell in seated))
    entry = lane.apply(
        events.ExpressAnswered(
            job_id=bid_id if cells else request.pk,
            question=asked.question,
            answer=answer,
            seats=seated,
            moved={name: one.cells for name, one in taken.items()},
        )
    )
    move_jobs(asked.planned, taken, now=lane.now)
    roots = () if own_cells is None else own_cells.roots
    _record(request, answer, entry, bid_id=bid_id if cells else "", roots=roots, now=lane.now)
    if cells:
        _store_bid(lane, request, answer, entry, bid_id=bid_id)
        _open_job(lane, request, answer, cells=cells, bid_id=bid_id)
    return _AnsweredRequest(request, answer, cells)


def _build_question(
    terms: ExpressLane,
    request: ExpressRequest,
    *,
    state: LaneState,
    gangs: GangRules,
    now: datetime,
) -> AskedLane:
    """What the lane is asked for a request: of the seats, its organisation's share."""
    zone = terms.zone
    own_seats = state.held[request.organisation_id]
    seats = limit_seats(state.seats, own_seats=own_seats)
    work = (request.slo_s, request.work_s, request.lookup_s)
    return build_lane_question(
        zone=zone,
        seats=seats,
        job=TuningJob(request.pk, zone.base_model_name, 0.0, *work),
        base=request.created_at,
        price=request.price,
        gangs=limit_gang(gangs, seats=len(seats), own_seats=own_seats),
        now=now,
    )


def _choose_cells(
    request: ExpressRequest, asked: AskedLane, answer: dict[str, Any]
) -> dict[str, TakenCells]:
    """The cells of a request that was certified, and of the jobs that move for it, by id."""
    if answer["answer"] != LaneAnswer.CERTIFIED:
        return {}
    own_places = [
        [request.pk, seat, answer["start_s"], answer["end_s"]]
        for seat in answer.get("seats") or [answer["seat"]]
    ]
    return choose_cells(
        asked.clock,
        asked.planned,
        [*answer["moved"], *own_places],
        due_at={request.pk: request.created_at + timedelta(seconds=request.slo_s)},
    )


def _record(
    request: ExpressRequest,
    answer: dict[str, Any],
    entry: ChainEntry,
    *,
    bid_id: str,
    roots: Sequence[str],
    now: datetime,
) -> None:
    statuses = {
        LaneAnswer.CERTIFIED: RequestStatus.ADMITTED,
        LaneAnswer.LATER: RequestStatus.OFFERED,
    }
    request.status = statuses.get(LaneAnswer(answer["answer"]), RequestStatus.REFUSED)
    if request.status == RequestStatus.ADMITTED and not bid_id:
        raise RuntimeError(f"{request.pk} was certified without a cell")
    request.answer, request.answered_at = answer, now
    request.position, request.decision_hash = entry.position, entry.hash
    request.bid_id = bid_id
    request.seat_bid_id, *further = roots or ("",)
    request.save(update_fields=_OF_ANSWERS)
    GangSeat.objects.bulk_create(GangSeat(request=request, root=root) for root in further)


#: What an answer changes of its request.
_OF_ANSWERS = (
    *("status", "answer", "answered_at", "position", "decision_hash"),
    *("bid_id", "seat_bid_id"),
)


def _find_due_at(request: ExpressRequest, answer: dict[str, Any]) -> datetime:
    return request.created_at + timedelta(seconds=answer["slo_s"])


def _store_bid(
    lane: Lane,
    request: ExpressRequest,
    answer: dict[str, Any],
    entry: ChainEntry,
    *,
    bid_id: str,
) -> None:
    """An admitted request as a bid that won at the posted price."""
    price_micros = int(answer["price_micros"])
    bid = Bid(
        pk=bid_id,
        zone_id=request.zone_id,
        organisation_id=request.organisation_id,
        placed_by_id=request.placed_by_id,
        **derive_columns(_read_terms(request)),
        name=request.name,
        status=BidStatus.ADMITTED,
        price_micros=request.limit_micros,
        deadline_at=_find_due_at(request, answer),
        resolved=request.resolved,
        samples=request.samples,
        compute_demand=request.compute_demand,
        memory_demand_gb=request.memory_demand_gb,
        rates=request.rates,
        request_hash=request.request_hash,
        created_at=request.created_at,
        decided_at=lane.now,
        position=entry.position,
        decision_hash=entry.hash,
        payment_micros=price_micros,
        parts={
            "vendor": 0,
            "operational": 0,
            "compute": price_micros,
            "memory": 0,
            "rounding": 0,
            "fee": 0,
            "card": 0,
            "tax": 0,
        },
        finish_planned_at=request.created_at + timedelta(seconds=answer["end_s"]),
        slo_s=answer["slo_s"],
    )
    bid.save(force_insert=True)


def _read_terms(request: ExpressRequest) -> JobTerms:
    return JobTerms(
        adapter=from_json(AdapterSpec, request.adapter),
        training=from_json(TrainingSpec, request.training),
        dataset=request.dataset_id,
        verified_only=request.verified_only,
    )


def _open_job(
    lane: Lane,
    request: ExpressRequest,
    answer: dict[str, Any],
    *,
    cells: tuple[Cell, ...],
    bid_id: str,
) -> None:
    """The job of the stored bid; a soft prompt may look its start up."""
    due_at, terms = _find_due_at(request, answer), _read_terms(request)
    [job_id] = open_jobs(
        openings=[
            Opening(
                bid_id=bid_id,
                organisation_id=request.organisation_id,
                created_by_id=request.placed_by_id,
                zone=lane.zone,
                name=request.name,
                columns=derive_columns(
                    replace(terms, adapter=replace(terms.adapter, looks_up=answer["looks_up"]))
                ),
                cells=cells,
                deadline_at=due_at,
                price_micros=int(answer["price_micros"]),
            )
        ],
        now=lane.now,
    )
    # Its last slot may end later: it counts as late only beyond the SLO.
    Job.objects.filter(pk=job_id).update(finish_planned_at=due_at)
    if answer["looks_up"]:
        job = Job.objects.select_related("zone", "dataset").get(pk=job_id)
        # No longer than was certified, should the bank have grown since.
        task = read_features(request.features)
        prepare_lookup(job=job, task=task, now=lane.now, most_s=request.lookup_s)


def _conclude(of: _AnsweredRequest) -> HoldSettlement:
    """An admitted job pays its price and gets the rest back, the others get everything back."""
    return HoldSettlement(
        hold_reference=of.request.hold_reference,
        charge_micros=int(of.answer["price_micros"]) if of.cells else None,
    )
