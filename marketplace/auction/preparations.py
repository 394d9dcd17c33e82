"""What follows from a preparation: the plan is cut, the vendor paid, the next vendor tried.

Everything is found by the state of the rows and may be asked for twice. The owner's price never
rises: what a next vendor asks more is paid by the market, up to a limit a day for each organisation
whose vendor failed. Without it two vendors could share what the market pays the costlier one.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from typing import Any

from django.db.models import Q

from marketplace.accounts.selectors import share_members
from marketplace.auction import locks
from marketplace.auction.book.engine_cache import get_commitment_salt
from marketplace.auction.book.reservations import release_reservations
from marketplace.auction.exposure import find_exposure_left
from marketplace.auction.give_backs import UndoneWork, build_release, list_held
from marketplace.auction.lane.enter import enter_lane
from marketplace.auction.lane.lane import Lane
from marketplace.auction.lane.plan_changes import PlannedJob, give_new_cells, measure_work_left
from marketplace.auction.models import Bid, Reservation
from marketplace.auction.pay_rule import compute_spared
from marketplace.common.durable.selectors import is_begun
from marketplace.common.money import format_usd
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import slot_starts_at
from marketplace.jobs.locks import lock_job
from marketplace.jobs.models import EventKind, FaultOf
from marketplace.jobs.services import add_job_event, fail_job, replace_job_cells
from marketplace.jobs.work import measure_job_work
from marketplace.payments.locks import lock_shares
from marketplace.payments.services import pay_vendor, refund_charge
from marketplace.vendors.acceptance import accept, mark_accepted, send_back
from marketplace.vendors.handover import PREPARE
from marketplace.vendors.locks import lock_preparation
from marketplace.vendors.models import (
    DISPUTABLE_FOR,
    Preparation,
    PreparationStatus,
    Vendor,
)
from marketplace.vendors.offers import compute_due_at, read_offers
from marketplace.vendors.opinions import end_waiting_opinions, wait_for_opinions
from marketplace.vendors.services import close, forget_copies, give_to_next_vendor
from scheduler import types as scheduler
from scheduler.auction import Replan
from scheduler.auction.log import events
from scheduler.auction.log.outcomes import ReleasedCells

log = logging.getLogger(__name__)

#: Preparations of one run; the next takes the rest.
BATCH_LIMIT = 100
REFUND_REASON = "Cells that the prepared data do not need"
LATE_REASON = "The vendor cost less than was sold"


def conclude_preparations(*, now: datetime) -> int:
    """Do what follows from deliveries, and from those that did not come; how many."""
    end_waiting_opinions(now=now)
    waiting = Preparation.objects.filter(concluded_at__isnull=True).filter(
        Q(status=PreparationStatus.ACCEPTED)
        | ~Q(problem="")
        | Q(status=PreparationStatus.WORKING, submitted_at__isnull=True, due_at__lte=now)
        | Q(status=PreparationStatus.DELIVERED, accept_by__lte=now)
        | Q(job__finished_at__isnull=False)
    )
    by_zone: defaultdict[str, list[str]] = defaultdict(list)
    for pk, zone_id in waiting.order_by("due_at", "pk").values_list("pk", "job__zone_id")[
        :BATCH_LIMIT
    ]:
        by_zone[zone_id].append(pk)
    concluded = 0
    for zone_id, ids in by_zone.items():
        zone = Zone.objects.get(pk=zone_id)
        for preparation_id in ids:
            try:
                with enter_lane(zone=zone, now=now) as lane:
                    concluded += _conclude(lane, preparation_id)
            except Exception:
                # One that cannot be concluded must not keep the others waiting.
                log.exception("preparation %s could not be concluded", preparation_id)
    return concluded


def _conclude(lane: Lane, preparation_id: str) -> bool:
    """Bring one preparation further; false when there is nothing to do any more."""
    held, bid = _lock_sale(preparation_id)
    if held.concluded_at is not None:
        return False
    if held.status == PreparationStatus.ACCEPTED:
        assert held.accepted_at is not None
        # All at once, before a refund locks the wallet alone.
        lock_shares(
            hold_reference=bid.hold_reference,
            buyer_id=bid.organisation_id,
            earner_ids=[held.vendor.organisation_id],
        )
        _end_vendor_work(lane, held)
        if held.job.is_active:
            _give_cells_back(lane, held, bid)
        held.refund_micros += _refund(
            lane, held, bid, max(0, held.sold_micros - held.price_micros), LATE_REASON
        )
        pay_vendor(
            hold_reference=bid.hold_reference,
            organisation_id=held.vendor.organisation_id,
            amount_micros=held.price_micros,
            disputable_until=held.accepted_at + DISPUTABLE_FOR,
            now=lane.now,
        )
        held.concluded_at, held.paid_from = lane.now, bid.hold_reference
        amounts = ("refund_micros", "spared_micros", "waits_micros", "unsold_rent_micros")
        held.save(update_fields=["concluded_at", "paid_from", *amounts])
        wait_for_opinions(held, now=lane.now)
        forget_copies(held)
        return True
    if held.status == PreparationStatus.DISPUTED:
        # An operator decides first, also about a job that its owner has cancelled.
        return False
    if held.status == PreparationStatus.DELIVERED:
        if held.job.is_active and held.accept_by is not None and held.accept_by > lane.now:
            return False
        if held.is_refused_by_rule:
            # Nobody trains on it unseen, and who cancels the job owes nothing for it.
            send_back(held, reason=held.objection)
        else:
            # Its owner had the time to refuse it; one who cancels has had the work done.
            if held.job.is_active:
                accept(preparation=held, now=lane.now)
            else:
                mark_accepted(held, now=lane.now)
            return True
    if held.is_handed_in:
        # What was handed in before the job ended is paid if it is what was ordered.
        return False
    if not held.job.is_active:
        _end_vendor_work(lane, held)
        close(held=held, status=PreparationStatus.WITHDRAWN, now=lane.now)
        return True
    is_late = held.due_at <= lane.now and held.submitted_at is None
    if held.status == PreparationStatus.WORKING and (held.problem or is_late):
        _find_next_vendor(lane, held, bid)
        return True
    return False


def _lock_sale(preparation_id: str) -> tuple[Preparation, Bid]:
    """Lock a preparation after its job and its bid, both of which may change with it."""
    found = Preparation.objects.filter(pk=preparation_id)
    job_id, bid_id = found.values_list("job_id", "bid_id").get()
    lock_job(job_id)
    bid = locks.lock_bid(bid_id=bid_id)
    return lock_preparation(preparation_id), bid


def _end_vendor_work(lane: Lane, held: Preparation) -> None:
    """From the next slot on the vendor has room for others."""
    if held.ready_slot > lane.first_free_slot:
        lane.apply(events.PreparationEnded(task_id=held.bid_id, slot=lane.first_free_slot))


def _give_cells_back(lane: Lane, held: Preparation, bid: Bid) -> None:
    """Put the last cells on sale again that the prepared data do not need, and give of their price.

    Where the vendor is the owner's own, they are given back at their value, and cells that passed
    meanwhile are paid for: data made small would be a free way to block cells. The rent of those
    that begin soon waits for them to be sold again; it goes back once the job is settled. Friends
    are no own vendors by any record: of what others' data spare, no more rent goes back at once
    than the market bears a day for the vendor's organisation.
    """
    assert held.prepared is not None
    is_own = share_members(bid.organisation_id, held.vendor.organisation_id)
    rows = list_held(bid=bid, first_slot=lane.first_free_slot)
    needed = measure_job_work(held.job).compute_demand
    spare: list[Reservation] = []
    sold = left = sum(row.samples for row in rows)
    while len(rows) > 1 and left - rows[-1].samples >= needed:
        left -= rows[-1].samples
        spare.append(rows.pop())
    if not spare:
        return
    vendor = math.ceil((bid.parts or {}).get("vendor", 0.0))
    paid_for = list_held(bid=bid, first_slot=0 if is_own else lane.first_free_slot)
    spared = compute_spared(
        payment_micros=bid.payment_micros or 0,
        vendor_micros=vendor,
        share=Fraction(sold - left) / Fraction(sum(row.samples for row in paid_for)),
    )
    undone = None
    if spared:
        part = Fraction(spared, (bid.payment_micros or 0) - vendor)
        undone = UndoneWork(part * Fraction(bid.compute_demand), paid_micros=spared)
    event = build_release(
        bid=bid,
        rows=spare[::-1],
        undone=undone,
        slot=lane.slot,
        first_slot=lane.first_free_slot,
    )
    if not is_own:
        event = replace(event, promised=_promise_rent(lane, held, event))
    outcome = lane.apply(event).outcome
    assert isinstance(outcome, ReleasedCells)
    release_reservations(bid_id=bid.pk, which=Q(pk__in=[row.pk for row in spare]), now=lane.now)
    replace_job_cells(
        job=held.job,
        cells=[scheduler.Cell(row.slot, row.node_id) for row in rows],
        reason=f"The prepared data need {len(spare)} slots less; they are on sale again.",
        now=lane.now,
    )
    held.spared_micros, held.waits_micros = spared, outcome.waits
    if outcome.waits:
        Bid.objects.filter(pk=bid.pk).update(waits_micros=outcome.waits)
    back = outcome.refund if is_own and outcome.refund is not None else spared - outcome.waits
    held.refund_micros = _refund(lane, held, bid, back, REFUND_REASON)


def _promise_rent(lane: Lane, held: Preparation, event: events.CellsReleased) -> int:
    """What of spared cells goes back at once, and how much of that is rent of some that begin soon.

    The rest of that rent waits.
    """
    due = lane.book.engine.replica().transition(event)
    assert isinstance(due, ReleasedCells)
    if not due.waits:
        return event.promised
    left = find_exposure_left(organisation_id=held.vendor.organisation_id, now=lane.now)
    held.unsold_rent_micros = min(due.waits, left)
    return (due.refund or 0) + held.unsold_rent_micros


def _refund(lane: Lane, held: Preparation, bid: Bid, amount_micros: int, reason: str) -> int:
    """Give a part of the price back and say so in the job's history; the amount."""
    if amount_micros:
        refund_charge(
            hold_reference=bid.hold_reference,
            amount_micros=amount_micros,
            reason=reason,
            now=lane.now,
        )
        add_job_event(
            job=held.job,
            kind=EventKind.REFUNDED,
            message=f"{reason}: {format_usd(amount_micros)} went back.",
            data={"amount_micros": amount_micros},
            now=lane.now,
        )
    return amount_micros


def _find_next_vendor(lane: Lane, held: Preparation, bid: Bid) -> None:
    """Plan the job again with the vendors that are left; refund it when there is no way."""
    late = "The vendor did not deliver in time."
    reason = held.problem or late
    most = held.sold_micros + _find_extra_limit(held, now=lane.now)
    offers = [offer for offer in held.other_offers if offer[1] <= most]
    is_at_work = held.begun_at is not None or is_begun(PREPARE, held.work_key)
    if not held.problem and is_at_work and not _was_late(held):
        # One more of its delays, once, at no cost to the owner and for less by its own terms.
        vendor_id, price_micros, *rest = next(
            offer for offer in bid.offers if offer[0] == held.vendor_id
        )
        paid_percent = 100 - held.vendor.late_percent
        offers.append([vendor_id, price_micros * paid_percent // 100, *rest])
    schedule = _replan(lane, held, bid, offers) if offers else None
    if schedule is None or schedule.ready_slot is None:
        _end_vendor_work(lane, held)
        close(held=held, status=PreparationStatus.FAILED, now=lane.now, reason=reason)
        fail_job(
            job=held.job,
            fault=FaultOf.SYSTEM,
            reason=f"{reason} No other vendor can; the payment is refunded.",
            now=lane.now,
        )
        return
    offer = offers[schedule.vendor]
    give_to_next_vendor(
        held=held,
        offer=offer,
        ready_slot=schedule.ready_slot,
        due_at=compute_due_at(
            vendor=Vendor.objects.get(pk=offer[0]),
            wish=held.wish,
            ready_at=slot_starts_at(lane.zone, schedule.ready_slot),
            slot_s=lane.zone.slot_s,
        ),
        reason=reason,
        now=lane.now,
    )


def _find_extra_limit(held: Preparation, *, now: datetime) -> int:
    """What the market may still pay today where vendors of this organisation failed.

    For its own program too: what it cannot prepare is chosen by who uploads it.
    """
    return find_exposure_left(organisation_id=held.vendor.organisation_id, now=now)


def _was_late(held: Preparation) -> bool:
    return any(missed["vendor"] == held.vendor_id for missed in held.missed)


def _replan(
    lane: Lane, held: Preparation, bid: Bid, offers: Sequence[list[Any]]
) -> scheduler.Schedule | None:
    promise = measure_work_left(zone=lane.zone, job=held.job, bid=bid)
    task = scheduler.Task(
        id=bid.pk,
        arrival_slot=lane.first_free_slot,
        deadline_slot=promise.deadline_slot,
        compute_demand=promise.compute_demand,
        memory_demand=promise.memory_demand,
        bid=float(bid.price_micros),
        rates=dict(sorted(promise.rates.items())),
        vendors=read_offers(offers),
        verified_only=promise.verified_only,
    )
    outcome = lane.apply(
        events.TaskReplanned(
            task=task,
            slot=lane.first_free_slot,
            salt=get_commitment_salt(),
        )
    ).outcome
    assert isinstance(outcome, Replan)
    if outcome.schedule is None:
        release_reservations(bid_id=bid.pk, which=Q(slot__gte=lane.first_free_slot), now=lane.now)
        return None
    give_new_cells(
        lane,
        PlannedJob(job=held.job, bid=bid, promise=promise),
        outcome.schedule.cells,
        reason="Planned again for a later delivery of the data, at no cost to you.",
    )
    return outcome.schedule
