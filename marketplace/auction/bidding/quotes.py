"""The posted price of a job before a bid for it; a quote reserves nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.bidding.measure import MeasuredJob, apply_offer, measure_job, plan_cold
from marketplace.auction.bidding.refusals import describe_refusal
from marketplace.auction.bidding.terms import check_deadline
from marketplace.auction.book import engine_cache as books
from marketplace.auction.royalties import list_royalties
from marketplace.auction.task_values import build_task
from marketplace.fleet.models import Zone
from marketplace.fleet.policy_settings import find_beat
from marketplace.fleet.selectors import last_slot_until, slot_at, slot_ends_at, slot_starts_at
from marketplace.vendors.endpoints import ask_for_quotes
from marketplace.vendors.models import Vendor
from marketplace.vendors.offers import collect_offers, find_capacities, read_offers
from marketplace.vendors.quoting import VendorOffer
from marketplace.warm.offers import ColdJob, Outlook, find_offer
from scheduler import types as scheduler

#: Pages show a quote as good for this time; any decision may move the price sooner.
QUOTE_LIFE = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One tread of the price-by-deadline curve: from this deadline on, this price."""

    deadline_at: datetime
    price_micros: int
    finish_at: datetime


@dataclass(frozen=True, slots=True)
class QuotedVendor:
    """The vendor that would prepare the data, and from when on training may use them."""

    vendor_id: str
    name: str
    price_micros: int
    ready_at: datetime


@dataclass(frozen=True, slots=True)
class BidQuote:
    """What a bid would have to beat, and what it would get, at one position of the log."""

    zone: Zone
    deadline_at: datetime
    measured: MeasuredJob
    #: A bid above it wins; ``None`` when nothing fits before the deadline.
    price_micros: int | None
    #: In micro-dollars, not rounded one by one; they add up to the price.
    parts: scheduler.PriceParts | None
    #: ``(slot, node id)`` in slot order.
    cells: tuple[scheduler.Cell, ...]
    finish_at: datetime | None
    curve: tuple[CurvePoint, ...]
    refusal: scheduler.Refusal | None
    #: Why nothing fits and what to do; empty otherwise.
    refusal_text: str
    #: The log this holds for.
    position: int
    #: The beat that a bid names to be told its price first.
    beat: scheduler.Beat
    head_hash: str
    made_at: datetime
    expires_at: datetime
    #: ``None`` where the data are trained on as they are, or nothing fits.
    vendor: QuotedVendor | None = None
    #: Whether there is a warm start for the job, where it names nothing to begin with itself.
    outlook: Outlook = Outlook.NONE
    #: With a warm start: the price without it; ``None`` when no such plan fits.
    cold_price_micros: int | None = None
    #: The plan is on nodes of verified providers only.
    verified_only: bool = False

    @property
    def saved_share(self) -> float:
        """What a warm start takes off the price, as a share of it."""
        if not self.cold_price_micros or self.price_micros is None:
            return 0.0
        return max(0.0, 1 - self.price_micros / self.cold_price_micros)


@dataclass(frozen=True, slots=True)
class _EngineAnswer:
    """What the engine quotes at one position of the log."""

    quote: scheduler.Quote
    #: Of a warm start: the same job without it.
    cold: scheduler.Quote | None
    head_hash: str


def make_quote(
    asked: JobRequest, *, deadline_at: datetime, now: datetime, is_warm: bool = True
) -> BidQuote:
    """The price of a job for one deadline, and by deadline.

    If there is a warm start that costs less and the job names nothing to begin with, the quote is
    for the warm start, unless ``is_warm`` is false.

    A quote expires after ``QUOTE_LIFE``, or with the current slot if that is sooner: the slot's end
    takes away the first cells that the job may use.

    Raises
    ------
    UserError
        The job could not be bid for as it stands.
    """
    zone = asked.zone
    check_deadline(deadline_at, zone=zone, now=now)
    wish = asked.parse_wish()
    measured = unaided = measure_job(asked, now=now)
    only = measured.terms.verified_only
    offers: list[VendorOffer] = []
    outlook = Outlook.NONE
    if wish is not None:
        dataset = asked.dataset
        answers = ask_for_quotes(zone=zone, dataset=dataset, wish=wish, now=now, remembers=True)
        offers = collect_offers(zone=zone, dataset=dataset, wish=wish, answers=answers, now=now)
    elif is_warm and not asked.model and asked.validation is None:
        planned = replace(plan_cold(measured, asked), verified_only=only)
        measured, outlook = _find_warm_start(measured, planned, now)
    deadline_slot = last_slot_until(zone, deadline_at)
    found = _ask_engine(
        zone, measured, offers, deadline_slot=deadline_slot, verified_only=only, now=now
    )
    answer, cold = found.quote, found.cold
    if cold is not None and not asked.model and not _is_cheaper(answer, than=cold):
        # For the same money the job does all of its steps.
        measured, answer, outlook, cold = unaided, cold, Outlook.NONE, None
    curve = build_curve(zone, answer.curve)
    schedule = answer.schedule
    return BidQuote(
        zone=zone,
        deadline_at=deadline_at,
        measured=measured,
        price_micros=None if answer.price is None else int(answer.price),
        parts=answer.parts,
        cells=() if schedule is None else schedule.cells,
        finish_at=None if schedule is None else slot_ends_at(zone, schedule.finish_slot),
        curve=curve,
        refusal=answer.refusal,
        refusal_text=describe_quote_refusal(answer.refusal, zone, measured, curve),
        verified_only=only,
        position=answer.position,
        beat=find_beat(zone, now),
        head_hash=found.head_hash,
        made_at=now,
        expires_at=min(now + QUOTE_LIFE, slot_starts_at(zone, slot_at(zone, now) + 1)),
        outlook=outlook,
        cold_price_micros=None if cold is None or cold.price is None else int(cold.price),
        vendor=_find_vendor(zone, schedule, offers),
    )


def _ask_engine(
    zone: Zone,
    measured: MeasuredJob,
    offers: Sequence[VendorOffer],
    *,
    deadline_slot: int,
    verified_only: bool,
    now: datetime,
) -> _EngineAnswer:
    """Quote the job, and where it has a warm start the job without it, from the zone's log."""
    slot = slot_at(zone, now)
    task = build_task(
        measured.work,
        task_id="quote",
        arrival_slot=slot + 1,
        deadline_slot=deadline_slot,
        vendors=read_offers([offer.to_json() for offer in offers]),
        verified_only=verified_only,
    )
    capacities = find_capacities(zone=zone, vendor_ids={offer.vendor_id for offer in offers})
    cold = None
    with books.read_book(zone=zone, now=now) as book:
        if measured.cold_work is not None:
            assert measured.start is not None
            task = replace(task, vendors=list_royalties(measured.start))
            without = replace(task, compute_demand=measured.cold_work.compute_demand, vendors=())
            cold = book.engine.quote(without, slot=slot)
        answer = book.engine.quote(task, slot=slot, capacities=capacities)
        return _EngineAnswer(answer, cold, book.engine.head_hash)


def _find_warm_start(
    measured: MeasuredJob, planned: ColdJob, now: datetime
) -> tuple[MeasuredJob, Outlook]:
    """The job with the warm start that is offered for it, or unchanged, and the offer's state."""
    found = find_offer(planned, now=now)
    if found.offer is not None:
        measured = apply_offer(measured, found.offer, planned)
    return measured, found.outlook


def _is_cheaper(one: scheduler.Quote, *, than: scheduler.Quote) -> bool:
    return one.price is not None and (than.price is None or one.price < than.price)


def _find_vendor(
    zone: Zone, schedule: scheduler.Schedule | None, offers: Sequence[VendorOffer]
) -> QuotedVendor | None:
    if schedule is None or schedule.ready_slot is None:
        return None
    offer = offers[schedule.vendor]
    return QuotedVendor(
        vendor_id=offer.vendor_id,
        name=Vendor.objects.values_list("name", flat=True).get(pk=offer.vendor_id),
        price_micros=offer.price_micros,
        ready_at=slot_starts_at(zone, schedule.ready_slot),
    )


def build_curve(zone: Zone, points: Iterable[scheduler.PricePoint]) -> tuple[CurvePoint, ...]:
    """The engine's curve in times instead of slots."""
    return tuple(
        CurvePoint(
            deadline_at=slot_ends_at(zone, point.deadline_slot),
            price_micros=int(point.price),
            finish_at=slot_ends_at(zone, point.finish_slot),
        )
        for point in points
    )


def describe_quote_refusal(
    refusal: scheduler.Refusal | None,
    zone: Zone,
    measured: MeasuredJob,
    curve: Sequence[CurvePoint],
) -> str:
    """Why nothing fits and what to do; empty where something does."""
    if refusal is None:
        return ""
    first = curve[0] if curve else None
    return describe_refusal(
        refusal=refusal,
        price_micros=None,
        posted_price_micros=None,
        zone=zone,
        adapter=measured.terms.adapter,
        memory_demand_gb=measured.work.memory_demand_gb,
        later_deadline_at=first and first.deadline_at,
        later_price_micros=first and first.price_micros,
    )
