"""The posted price of a job before anybody bids for it; reserves nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from marketplace.accounts.models import Organisation
from marketplace.auction.bidding.measure import (
    MeasuredJob,
    apply_offer,
    find_verified_only,
    measure_job,
    plan_cold,
)
from marketplace.auction.bidding.refusals import describe_refusal
from marketplace.auction.bidding.terms import check_deadline
from marketplace.auction.book import engine_cache as books
from marketplace.auction.royalties import list_royalties
from marketplace.auction.task_values import build_task
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import last_slot_until, slot_at, slot_ends_at, slot_starts_at
from marketplace.jobs.models import Dataset
from marketplace.vendors.endpoints import ask_for_quotes
from marketplace.vendors.models import Vendor
from marketplace.vendors.offers import collect_offers, find_capacities, read_offers
from marketplace.vendors.quoting import VendorOffer
from marketplace.vendors.wishes import parse_wish
from marketplace.warm.offers import ColdJob, Outlook, find_offer
from scheduler import types as scheduler

#: A quote is shown as good for so long; any decision may move the price sooner.
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


def make_quote(
    *,
    organisation: Organisation,
    zone: Zone,
    dataset: Dataset,
    adapter: Mapping[str, Any],
    training: Mapping[str, Any],
    deadline_at: datetime,
    validation: Dataset | None = None,
    preparation: Mapping[str, Any] | None = None,
    now: datetime,
    model: str = "",
    is_warm: bool = True,
    verified_only: bool | None = None,
) -> BidQuote:
    """The price of a job for one deadline, and by deadline.

    Where there is a warm start that costs less and the job names nothing to begin with, the quote
    is for it, unless ``is_warm`` says otherwise. ``verified_only`` is as in ``NewBid``.

    Expires with the current slot, whose end takes away the first cells it may
    use, and in any case after ``QUOTE_LIFE``.

    Raises
    ------
    UserError
        The job could not be bid for as it stands.
    """
    check_deadline(deadline_at, zone=zone, now=now)
    wish = None if preparation is None else parse_wish(preparation)
    measured = measure_job(
        organisation=organisation,
        zone=zone,
        dataset=dataset,
        validation=validation,
        adapter=adapter,
        training=training,
        wish=wish,
        model=model,
        now=now,
    )
    unaided = measured
    only = find_verified_only(verified_only, organisation=organisation, start=measured.start)
    offers: list[VendorOffer] = []
    outlook = Outlook.NONE
    if wish is not None:
        answers = ask_for_quotes(zone=zone, dataset=dataset, wish=wish, now=now, remembers=True)
        offers = collect_offers(zone=zone, dataset=dataset, wish=wish, answers=answers, now=now)
    elif is_warm and not model and validation is None:
        planned = plan_cold(measured, organisation=organisation, zone=zone, dataset=dataset)
        measured, outlook = _warm(measured, replace(planned, verified_only=only), now)
    slot = slot_at(zone, now)
    deadline_slot = last_slot_until(zone, deadline_at)
    task = build_task(
        measured.work,
        task_id="quote",
        arrival_slot=slot + 1,
        deadline_slot=deadline_slot,
        vendors=read_offers([offer.to_json() for offer in offers]),
        verified_only=only,
    )
    capacities = find_capacities(zone=zone, vendor_ids={offer.vendor_id for offer in offers})
    without, cold_price = None, None
    with books.read_book(zone=zone, now=now) as book:
        if measured.cold_work is not None:
            assert measured.start is not None
            task = replace(task, vendors=list_royalties(measured.start))
            cold = replace(task, compute_demand=measured.cold_work.compute_demand, vendors=())
            without = book.engine.quote(cold, slot=slot)
            cold_price = without.price
        answer = book.engine.quote(task, slot=slot, capacities=capacities)
        if without is not None and not model and not _is_cheaper(answer, than=without):
            # For the same money the job does all of its steps.
            measured, answer, outlook, cold_price = unaided, without, Outlook.NONE, None
        head_hash = book.engine.head_hash
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
        head_hash=head_hash,
        made_at=now,
        expires_at=min(now + QUOTE_LIFE, slot_starts_at(zone, slot + 1)),
        outlook=outlook,
        cold_price_micros=None if cold_price is None else int(cold_price),
        vendor=_find_vendor(zone, schedule, offers),
    )


def _warm(measured: MeasuredJob, planned: ColdJob, now: datetime) -> tuple[MeasuredJob, Outlook]:
    """The job with the warm start that there is for it, or as it was, and how that stands."""
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
