"""Moves the money of jobs that ended, by what ``endings`` finds to be due.

Every effect is named by the bid's hold and may be asked for twice.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from datetime import datetime
from fractions import Fraction

from django.db import transaction
from django.db.models import QuerySet

from marketplace.auction import locks
from marketplace.auction.endings import (
    EndedJob,
    compute_dues,
    compute_excess,
    judge_ending,
)
from marketplace.auction.give_backs import list_unreleased_jobs
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid, BidStatus, WorkShare
from marketplace.auction.pay_rule import Ending, Settlement
from marketplace.auction.retries import put_off
from marketplace.checks.scores import exclude_unmeasured, open_score_checks
from marketplace.common.money import format_usd, format_usd_exact
from marketplace.fleet.models import Zone
from marketplace.fleet.slots import slot_at
from marketplace.jobs.locks import lock_job
from marketplace.jobs.models import EventKind, Job
from marketplace.jobs.selectors import list_unsettled_jobs
from marketplace.jobs.services import add_job_event, mark_job_settled
from marketplace.payments.locks import lock_shares
from marketplace.payments.models import EarningKind, Hold
from marketplace.payments.services import (
    CostSplit,
    Share,
    distribute_charge,
    pay_sla_credit,
    refund_charge,
)
from marketplace.vendors.selectors import exclude_open, find_preparation
from marketplace.warm.models import Offer
from marketplace.warm.outcomes import find_taken_offer, record_outcome
from marketplace.warm.overruns import record_overruns

log = logging.getLogger(__name__)

#: Events in a job's history that mean a delay, and how many of these its owner is shown.
_HELD_UP = (EventKind.NODE_LOST, EventKind.FAULT, EventKind.REPLAN_WANTED)
CAUSES_TOLD = 3
#: Jobs of one run; the next sweep takes the rest.
BATCH_LIMIT = 200


def settle_finished(*, now: datetime) -> int:
    """Put the unused cells of ended jobs back on sale and settle their money; how many jobs.

    One that cannot be settled is tried again with backoff, while the others go on; the operator
    sees why.
    """
    unreleased = _release_unused_cells(now=now)
    waiting = Bid.objects.filter(status=BidStatus.ADMITTED, retry_at__gt=now)
    unsettled = list_unsettled_jobs().exclude(bid_id__in=waiting.values("pk"))
    unsettled = unsettled.exclude(pk__in=unreleased)
    # A vendor is paid before the rest is shared out.
    jobs = list(exclude_unmeasured(exclude_open(unsettled))[:BATCH_LIMIT])
    # Nor is a job that ended at what its node said of held-out rows, before another looked at them.
    settled = 0
    for job in open_score_checks(jobs, now=now):
        try:
            settle_job(job=job, now=now)
            settled += 1
        except Exception as error:
            put_off(job, error, now=now)
    return settled


def _release_unused_cells(*, now: datetime) -> list[str]:
    """Have a turn of each zone put the cells of ended jobs on sale, whatever their money waits for.

    Returns
    -------
    list of str
        Jobs whose cells can still be sold and are not on sale: their zone had no turn.
    """
    left: list[str] = []
    zones = list_unreleased_jobs().order_by().values("zone")
    for zone in Zone.objects.filter(pk__in=zones).order_by("pk"):
        try:
            refresh_zone(zone=zone, now=now)
        except Exception:
            log.exception("zone %s: cells of ended jobs are not on sale yet", zone.name)
        left += _list_unreleased(zone, now=now).values_list("pk", flat=True)
    return left


def _list_unreleased(zone: Zone, *, now: datetime) -> QuerySet[Job]:
    """Jobs whose money waits for a turn of their zone, for as long as their cells can be sold.

    A zone that is broken holds up nobody's money for longer than the job's plan would have taken.
    For what it did not put on sale again, 98 % of what was paid goes back.
    """
    return list_unreleased_jobs(after_slot=slot_at(zone, now)).filter(zone=zone).order_by()


def settle_job(*, job: Job, now: datetime) -> Settlement | None:
    """Move the money of one ended job, once; ``None``: it was, or its cells go on sale first."""
    with transaction.atomic():
        job = lock_job(job.pk)
        if job.settled_at is not None or job.finished_at is None:
            return None
        if _list_unreleased(job.zone, now=now).filter(pk=job.pk).exists():
            return None
        bid = locks.lock_bid(bid_id=job.bid_id)
        assert bid.payment_micros is not None
        case, offer = judge_ending(job), find_taken_offer(job)
        # Before the day's limit is read, so that two jobs of one provider cannot both use it up.
        donors = [] if offer is None else [offer.organisation_of_donor]
        lock_shares(
            hold_reference=bid.hold_reference,
            buyer_id=bid.organisation_id,
            earner_ids=[*case.find_organisations(), *donors],
        )
        due = compute_dues(bid=bid, job=job, case=case, now=now)
        excess = compute_excess(bid=bid, case=case, due=due)
        royalty = _compute_royalty(bid, job, case, offer, excess_micros=excess)
        _return_excess(bid, excess, now=now)
        _move_money(bid=bid, case=case, due=due, royalty=royalty, now=now)
        bid.credit_micros = due.credit_micros
        bid.failure, bid.failures, bid.retry_at = "", 0, None
        if bid.waits_micros:
            bid.rent_due_micros = _find_rent_due(bid, job, case, due, now=now)
        bid.save(
            update_fields=["credit_micros", "failure", "failures", "retry_at", "rent_due_micros"]
        )
        WorkShare.objects.bulk_create(
            WorkShare(
                bid=bid,
                node_id=pay.work.node_id,
                organisation_id=pay.work.organisation_id,
                steps=pay.work.steps,
                units=pay.work.units,
                earned_micros=pay.earned_micros,
                paid_micros=pay.paid_micros,
            )
            for pay in due.nodes
        )
        if offer is not None:
            record_outcome(
                job=job,
                offer=offer,
                royalty_micros=0 if royalty is None else royalty.amount_micros,
                saved_micros=_compute_saving(bid, case),
                now=now,
            )
            record_overruns(offer=offer, by_provider=_sum_added(due), now=now)
        _add_events(job, case, due, now)
        mark_job_settled(job=job, now=now, message=_summarize(bid))
    return due


def _find_rent_due(bid: Bid, job: Job, case: EndedJob, due: Settlement, *, now: datetime) -> int:
    """What goes back later at most: the rent of cells that data did not need, and of the rest.

    Of the rest no more than a machine's start leaves, and nothing where all goes back already.
    """
    preparation = find_preparation(job)
    of_data = 0 if preparation is None else preparation.waits_micros
    of_rest = bid.waits_micros - of_data
    if not of_rest:
        # Only a job that its owner gave back has one; the day's limits have been used since.
        return of_data
    then = compute_dues(bid=bid, job=job, case=case, now=now, waits_micros=of_rest)
    return of_data + then.refund_micros - due.refund_micros


def _compute_royalty(
    bid: Bid, job: Job, case: EndedJob, offer: Offer | None, *, excess_micros: int
) -> Share | None:
    """What the owner of the donor gets: its part of the work that was spared, less any excess.

    Work that was sold as spared and had to be done after all earns nothing, nor does an adapter
    that the job did without: it was withdrawn, or did harm.
    """
    if offer is None or not bid.royalty_micros or case.ending is Ending.FAILED_BY_HOUSE:
        return None
    if job.start is None or job.start.dropped:
        return None
    done_after_all = case.work.overrun * offer.units / (offer.cold_units - offer.units)
    spared = case.work.share * (1 - min(Fraction(1), done_after_all))
    due = math.floor(bid.royalty_micros * spared) - excess_micros
    if due <= 0:
        return None
    return Share(offer.organisation_of_donor, due, EarningKind.ROYALTY)


def _return_excess(bid: Bid, excess_micros: int, *, now: datetime) -> None:
    """Give back what a warm start cost more than a cold one would have, at the decision."""
    if excess_micros:
        refund_charge(
            hold_reference=bid.hold_reference,
            amount_micros=excess_micros,
            reason="Never above the price without a warm start",
            now=now,
        )


def _compute_saving(bid: Bid, case: EndedJob) -> int:
    """What the warm start of a job that succeeded took off its price."""
    done = case.ending in (Ending.IN_TIME, Ending.LATE)
    if not done or bid.cold_price_micros is None:
        return 0
    return max(0, bid.cold_price_micros - (bid.payment_micros or 0))


def _sum_added(due: Settlement) -> dict[str, int]:
    """By provider, what the market adds for a warm start that fell behind."""
    added: defaultdict[str, int] = defaultdict(int)
    for pay in due.nodes:
        added[pay.work.organisation_id] += pay.added_micros
    return dict(added)


def _move_money(
    *, bid: Bid, case: EndedJob, due: Settlement, royalty: Share | None, now: datetime
) -> None:
    if due.refund_micros:
        refund_charge(
            hold_reference=bid.hold_reference,
            amount_micros=due.refund_micros,
            reason=_explain_refund(case, due),
            now=now,
        )
    if due.credit_micros:
        pay_sla_credit(
            organisation=bid.organisation,
            amount_micros=due.credit_micros,
            hold_reference=bid.hold_reference,
            reason=case.reason,
            now=now,
        )
    is_borne = bool(due.borne_pay_micros or due.borne_credit_micros or due.borne_vendor_micros)
    split = CostSplit(
        asks_micros=due.asks_micros,
        asks_returned_micros=due.asks_returned_micros,
        asks_kept_micros=due.asks_kept_micros,
        kept_micros=due.kept_micros + due.given_back_kept_micros,
        house_fee_micros=due.house_fee_micros,
        shares=(
            *(Share(pay.work.organisation_id, pay.paid_micros) for pay in due.nodes),
            *(() if royalty is None else (royalty,)),
        ),
        credit_withheld_micros=due.credit_micros - due.borne_credit_micros,
        borne_pay_micros=due.borne_pay_micros,
        borne_credit_micros=due.borne_credit_micros,
        borne_vendor_micros=due.borne_vendor_micros,
        at_fault_id=case.at_fault[-1] if is_borne and case.at_fault else None,
    )
    distribute_charge(hold_reference=bid.hold_reference, split=split, now=now)


def _add_events(job: Job, case: EndedJob, due: Settlement, now: datetime) -> None:
    refund = (due.refund_micros, _explain_refund(case, due))
    for amount, why in (refund, (due.credit_micros, case.reason)):
        if amount:
            add_job_event(
                job=job,
                kind=EventKind.REFUNDED,
                message=f"{why}: {format_usd(amount)} went back to your wallet.",
                data={"amount_micros": amount},
                now=now,
            )
    if case.ending is Ending.LATE:
        _explain_lateness(job, now)


def _explain_refund(case: EndedJob, due: Settlement) -> str:
    """Why money goes back, and what was kept of it."""
    if not due.kept_micros:
        return case.why_refunded
    return f"{case.why_refunded}, but for {format_usd_exact(due.kept_micros)} that is kept"


def _explain_lateness(job: Job, now: datetime) -> None:
    """Tell the owner of a late job by how much it missed its deadline, and what held it up."""
    assert job.finished_at is not None
    late_s = (job.finished_at - job.deadline_at).total_seconds()
    held_up = job.events.filter(kind__in=_HELD_UP, at__lte=job.finished_at).order_by("seq")
    causes = [event.message for event in held_up if event.data.get("is_trouble", True)]
    words = " ".join(causes[:CAUSES_TOLD]) or "It ran slower than its plan."
    more = len(causes) - CAUSES_TOLD
    add_job_event(
        job=job,
        kind=EventKind.SETTLED,
        message=f"Ended {late_s:.0f} s after its deadline. What held it up: {words}"
        + (f" And {more} more." if more > 0 else ""),
        data={"late_s": late_s, "causes": causes},
        now=now,
    )


def _summarize(bid: Bid) -> str:
    hold = Hold.objects.get(reference=bid.hold_reference)
    kept = hold.charged_micros - hold.refunded_micros
    return f"Settled: {format_usd(kept)} of {format_usd(hold.charged_micros)} was used."
