"""Asking the lane: measured, priced, held and stored; the zone's lane answers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from django.db import transaction

from marketplace.accounts.models import Organisation, User
from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.bidding.limits import build_crowd_refusal, count_job_room
from marketplace.auction.bidding.measure import (
    RATES_KEPT_S,
    MeasuredJob,
    find_verified_only,
    measure_job,
)
from marketplace.auction.bidding.terms import check_name
from marketplace.auction.bidding.wait import wait_for
from marketplace.auction.models import Bid, BidStatus
from marketplace.common.errors import Conflict, NotFound, UserError
from marketplace.common.queue import enqueue
from marketplace.common.ttl_cache import TtlCache
from marketplace.express.bank import count_candidates, count_losses, describe_dataset
from marketplace.express.gangs import START_S, find_gang_rules
from marketplace.express.models import ExpressLane, ExpressRequest, RequestStatus, Seat
from marketplace.express.seats import SEAT_VIRTUAL_TOKENS, find_seat_memory_gb
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import slot_at
from marketplace.jobs.work import count_units_per_row
from marketplace.payments.holds import HoldRequest, place_holds
from marketplace.payments.models import Hold
from scheduler.prompts.answers import compute_price_micros
from scheduler.prompts.gangs import GangRules, compute_gang_run_s
from workers.protocol.job_spec import AdapterKind
from workers.protocol.wire import to_json

#: By how much a run may outlast the zone's measured speed.
SAFETY = 1.25
#: The share of a row's work that one loss of a lookup is.
FORWARD_SHARE = 1 / 3
#: Requests of one organisation that may wait for an answer in a zone at once.
PENDING_MAX = 16
#: What gangs a zone's nodes allow is read so often for prices; an answer reads it again.
_gang_rules: TtlCache[GangRules] = TtlCache(for_s=RATES_KEPT_S)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpressOrder:
    """A job that somebody wants done within an SLO, before any of it is checked."""

    job: JobRequest
    name: str
    #: Seconds from now.
    slo_s: float
    placed_by: User | None
    api_key_id: str | None = None
    #: The same key twice is one request.
    idempotency_key: str | None = None

    def compute_hash(self) -> str:
        """What tells it from another order under the same key."""
        job = self.job
        asked: list[Any] = [job.zone.pk, job.dataset.sha256, self.name]
        asked += [dict(job.adapter), dict(job.training), self.slo_s]
        asked += [] if job.verified_only is None else [job.verified_only]
        text = json.dumps(asked, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ExpressTerms:
    """What a job is for the lane, and what it costs by SLO."""

    lane: ExpressLane
    measured: MeasuredJob
    #: Seconds of a seat, at most: without a lookup, and for one.
    work_s: float
    lookup_s: float
    gangs: GangRules

    @property
    def least_slo_s(self) -> float:
        """The shortest SLO that idle seats keep: the largest gang on sale."""
        return compute_gang_run_s(self.work_s, self.gangs.most, self.gangs)

    def price_micros(self, slo_s: float) -> int:
        """The posted price at an SLO."""
        return compute_price_micros(work_s=self.work_s, slo_s=slo_s, **self.posted)

    @property
    def posted(self) -> dict[str, Any]:
        """The lane's rate and surcharge now, and how its gangs are charged for."""
        return {
            "rate_micros": self.lane.rate_micros or 0,
            "urgency_percent": self.lane.urgency_percent,
            "gang": asdict(self.gangs),
        }


def get_open_lane(zone: Zone) -> ExpressLane:
    """The zone's lane, if it sells now.

    Raises
    ------
    Conflict
        ``no_express_lane``.
    """
    lane = ExpressLane.objects.select_related("zone").filter(zone=zone, is_open=True).first()
    if lane is None or lane.rate_micros is None:
        raise Conflict(
            "no_express_lane",
            f"The zone {zone.name} has no express lane now. Place a bid instead.",
            param="zone",
        )
    return lane


def _check_verified(lane: ExpressLane, *, now: datetime) -> None:
    """Refuse a job for verified providers only where the lane has seats on other nodes.

    Raises
    ------
    Conflict
        ``lane_not_verified``.
    """
    seats = Seat.objects.filter(lane=lane, last_slot__gte=slot_at(lane.zone, now)).values("bid_id")
    open_bids = (BidStatus.PENDING, BidStatus.ADMITTED)
    others = Bid.objects.filter(pk__in=seats, verified_only=False, status__in=open_bids)
    if not lane.verified_only or others.exists():
        raise Conflict(
            "lane_not_verified",
            f"The express lane of {lane.zone.name} has seats on nodes of providers that are not "
            "verified. Place a bid instead.",
            param="verified_only",
        )


def measure_express_job(asked: JobRequest, *, now: datetime) -> ExpressTerms:
    """Resolve a prompt-tuning job's settings and measure it for the lane.

    Raises
    ------
    UserError
        As ``measure_job``, and ``not_prompt_tuning``.
    Conflict
        As ``get_open_lane``, and ``lane_not_verified``.
    """
    zone = asked.zone
    lane = get_open_lane(zone)
    if _is_verified_only(asked):
        _check_verified(lane, now=now)
    adapter = {"kind": str(AdapterKind.SOFT_PROMPT)} | dict(asked.adapter)
    if adapter["kind"] != AdapterKind.SOFT_PROMPT:
        raise UserError(
            "not_prompt_tuning",
            "The express lane tunes soft prompts only. Place a bid for a LoRA adapter.",
            param="adapter.kind",
        )
    measured = measure_job(replace(asked, adapter=adapter, verified_only=None), now=now)
    work = measured.work
    slowest = min(work.rates.values(), default=0.0)
    if not slowest:
        raise Conflict("no_express_lane", "No node of the zone can run this job now.", param="zone")
    if work.memory_demand_gb > find_seat_memory_gb(zone):
        raise UserError(
            "too_large_for_the_lane",
            "A seat of the lane has memory for a soft prompt of "
            f"{SEAT_VIRTUAL_TOKENS} tokens at most. Give fewer virtual tokens.",
            param="adapter.virtual_tokens",
        )
    work_s = START_S + SAFETY * work.compute_demand / slowest * zone.slot_s
    lookup_s = _count_lookup_units(asked, measured) / slowest * zone.slot_s
    gangs = _gang_rules.get(zone.pk, now=now, read=lambda: find_gang_rules(lane))
    return ExpressTerms(lane, measured, work_s, lookup_s, gangs)


def _is_verified_only(asked: JobRequest) -> bool:
    return find_verified_only(asked.verified_only, organisation=asked.organisation, start=None)


def _count_lookup_units(asked: JobRequest, measured: MeasuredJob) -> float:
    """Work units of the losses that a lookup computes, at most; 0 without one."""
    adapter = measured.terms.adapter
    if not adapter.looks_up:
        return 0.0
    candidates = count_candidates(
        organisation_id=asked.organisation.pk, zone=asked.zone, tokens=adapter.virtual_tokens
    )
    if not candidates:
        return 0.0
    row_tokens = min(asked.dataset.longest_row_tokens, measured.terms.training.sequence_length)
    units = count_units_per_row(zone=asked.zone, row_tokens=row_tokens + adapter.virtual_tokens)
    return count_losses(candidates) * units * FORWARD_SHARE


def place_request(asked: ExpressOrder, *, now: datetime) -> ExpressRequest:
    """Ask the zone's lane for an SLO, and hold the posted price; the lane answers.

    Raises
    ------
    UserError
        ``invalid_slo`` with the least that can be certified, and those of ``measure_express_job``.
        ``too_many_requests``: many of the organisation's requests have no answer yet.
        ``new_account_jobs``: it is new and has as many jobs as it may.
    Conflict
        ``idempotency_key_reused``.
    PaymentRequired
        ``insufficient_funds``.
    """
    job, request_hash = asked.job, asked.compute_hash()
    same = _find_by_key(job.organisation.pk, asked.idempotency_key)
    if same is not None:
        return _check_same(same, request_hash)
    terms = measure_express_job(job, now=now)
    _check_slo(asked.slo_s, terms)
    work = terms.measured.work
    request = ExpressRequest(
        zone=job.zone,
        organisation=job.organisation,
        placed_by=asked.placed_by,
        dataset=job.dataset,
        name=check_name(asked.name),
        slo_s=asked.slo_s,
        adapter=to_json(terms.measured.terms.adapter),
        training=to_json(terms.measured.terms.training),
        resolved=list(terms.measured.resolved),
        samples=work.samples,
        compute_demand=work.compute_demand,
        memory_demand_gb=work.memory_demand_gb,
        rates=work.rates,
        verified_only=_is_verified_only(job),
        work_s=terms.work_s,
        lookup_s=terms.lookup_s,
        features=describe_dataset(job.dataset).astype("<f4").tobytes() if terms.lookup_s else b"",
        price=terms.posted,
        limit_micros=terms.price_micros(asked.slo_s),
        idempotency_key=asked.idempotency_key,
        request_hash=request_hash,
        created_at=now,
    )
    return _store_request(request, api_key_id=asked.api_key_id, now=now)


def _store_request(
    request: ExpressRequest, *, api_key_id: str | None, now: datetime
) -> ExpressRequest:
    """Hold the price and store the request, or find the one that the same key made meanwhile."""
    with transaction.atomic():
        [hold] = place_holds(
            wanted=[
                HoldRequest(
                    request.organisation_id,
                    request.limit_micros,
                    request.hold_reference,
                    placed_by_id=request.placed_by_id,
                    api_key_id=api_key_id,
                )
            ],
            now=now,
        )
        if not isinstance(hold, Hold):
            raise hold
        # Under the wallet's lock: the same key twice at once is one request.
        same = _find_by_key(request.organisation_id, request.idempotency_key)
        if same is not None:
            transaction.set_rollback(True)
            return _check_same(same, request.request_hash)
        _check_pending(request)
        _check_new_account(request, now=now)
        request.save(force_insert=True)
        enqueue("express.answer_requests", zone_id=request.zone_id)
    return request


def _find_by_key(organisation_id: str, key: str | None) -> ExpressRequest | None:
    """The organisation's request under an idempotency key, if there is one."""
    if key is None:
        return None
    return ExpressRequest.objects.filter(organisation=organisation_id, idempotency_key=key).first()


def _check_pending(request: ExpressRequest) -> None:
    """Refuse another request of those who have many without an answer; the lane serves others."""
    waiting = ExpressRequest.objects.filter(
        zone=request.zone, organisation=request.organisation, status=RequestStatus.PENDING
    )
    if waiting.count() >= PENDING_MAX:
        raise UserError(
            "too_many_requests",
            f"{PENDING_MAX} of your requests wait for an answer in this zone. Ask again when the "
            "first of them is answered.",
            status=429,
        )


def _check_slo(slo_s: float, terms: ExpressTerms) -> None:
    if not terms.least_slo_s <= slo_s <= terms.lane.slo_max_s:
        raise UserError(
            "invalid_slo",
            f"The SLO is {slo_s:g} s. This job takes up to {terms.least_slo_s:.1f} s and the lane "
            f"sells SLOs up to {terms.lane.slo_max_s:g} s; give one in between, fewer epochs, or "
            "place a bid.",
            param="slo_s",
            extra={
                "least_slo_s": round(terms.least_slo_s, 1),
                "longest_slo_s": terms.lane.slo_max_s,
            },
        )


def _check_same(earlier: ExpressRequest, request_hash: str) -> ExpressRequest:
    """The request that was made under a key before, if it is the same again."""
    if earlier.request_hash != request_hash:
        raise Conflict(
            "idempotency_key_reused",
            f"The idempotency key was used for {earlier.pk} with another request. "
            "Send a new key with a new request.",
        )
    return earlier


def _check_new_account(request: ExpressRequest, *, now: datetime) -> None:
    """Refuse it where its organisation is new and has all the jobs that it may."""
    owner = request.organisation_id
    room = count_job_room([owner], now=now)
    if owner in room:
        waiting = ExpressRequest.objects.filter(organisation=owner, status=RequestStatus.PENDING)
        if waiting.count() >= room[owner]:
            raise build_crowd_refusal()


def get_request(organisation: Organisation, request_id: str) -> ExpressRequest:
    """An organisation's own request.

    Raises
    ------
    NotFound
        ``unknown_request``.
    """
    found = ExpressRequest.objects.filter(organisation=organisation, pk=request_id)
    request = found.select_related("zone", "dataset").first()
    if request is None:
        raise NotFound("unknown_request", "You have no such express request.")
    return request


def wait_for_answer(request: ExpressRequest, *, timeout_s: float | None = None) -> ExpressRequest:
    """The request once it is answered, or as it stands after ``timeout_s``; as ``wait_for_bid``."""
    rows = ExpressRequest.objects.select_related("zone", "dataset")
    return wait_for(
        request.pk,
        lambda: rows.get(pk=request.pk),
        waits=lambda found: found.status == RequestStatus.PENDING,
        timeout_s=timeout_s,
    )
