"""How a job ended, as far as money goes, and what is due by the rule in ``pay_rule``.

Everything here reads; ``settlement`` moves the money.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction

from django.conf import settings
from django.db.models import Exists, OuterRef, Q

from marketplace.accounts.selectors import is_run_by_operator, share_members
from marketplace.auction.exposure import find_exposure_left
from marketplace.auction.give_backs import UndoneWork, split_undone
from marketplace.auction.models import Bid, Reservation
from marketplace.auction.pay_rule import (
    EXPRESS_LEAST_PERCENT,
    Ending,
    HouseLimits,
    Settlement,
    SoldJob,
    compute_asks,
    compute_settlement,
    cut_asks,
    find_express_refund,
)
from marketplace.checks.fault_checks import is_confirmed_by_itself
from marketplace.checks.scores import find_refuted_organisation
from marketplace.common.money import MAX_MICROS
from marketplace.fleet.slots import slot_at
from marketplace.jobs.executed_work import (
    ExecutedWork,
    list_organisations_at_fault,
    list_slices,
    measure_executed_work,
)
from marketplace.jobs.models import FaultOf, Job, JobStatus, Slice
from marketplace.vendors.acceptance import DELIVERED
from marketplace.vendors.selectors import (
    find_preparation,
    is_held_up_by_owner,
    list_failed_vendors,
)

_NOT_DONE = "Work that was not done"


@dataclass(frozen=True, slots=True)
class EndedJob:
    """How a job ended, as far as money goes."""

    ending: Ending
    work: ExecutedWork
    #: Organisations whose nodes lost, failed or delayed the job, the latest last.
    at_fault: tuple[str, ...] = ()
    #: Why money goes back; empty when none does.
    reason: str = ""
    #: Why a part of the charge does, where that is another reason.
    refund_reason: str = ""
    #: Its owner ended it, or let it end before all of its work was done, and so gives it back.
    is_given_back: bool = False
    #: Its owner let its cells pass: the data waited, or people of its own lost them.
    is_own_delay: bool = False

    @property
    def why_refunded(self) -> str:
        return self.refund_reason or self.reason

    def find_organisations(self) -> set[str]:
        """The organisations whose earnings may change."""
        return {node.organisation_id for node in self.work.by_node} | set(self.at_fault)


def compute_dues(
    *, bid: Bid, job: Job, case: EndedJob, now: datetime, waits_micros: int = 0
) -> Settlement:
    """What is due for a job that ended, within the market's limits for today.

    ``waits_micros`` is what is kept of it for now and may go back later: what is due then.
    """
    sold = describe_sale(bid, job, case, now=now, credit_percent=_find_credit_percent(bid, job))
    slot = slot_at(bid.zone, job.finished_at or now)
    # Where the log says nothing of it, no cell was on sale in time.
    undone = find_undone(bid, sold, case, slot=slot, first_slot=MAX_MICROS)
    return compute_settlement(
        sold=replace(sold, kept_micros=max(0, _choose_kept(undone, bid, case) - waits_micros)),
        work=case.work,
        ending=case.ending,
        at_fault=case.at_fault,
        limits=_find_limits(bid, case, now=now),
    )


def compute_excess(*, bid: Bid, case: EndedJob, due: Settlement) -> int:
    """What a warm start cost more than a cold one would have, for the work that was done.

    Neither the nodes' pay nor what is kept of work not done comes out of it, and with the refund
    and a credit no more goes back than was paid.
    """
    left = (bid.payment_micros or 0) - due.refund_micros - due.kept_micros
    executed = sum(pay.earned_micros - pay.added_micros for pay in due.nodes)
    excess = math.floor(bid.excess_micros * case.work.share)
    return max(0, min(excess, left - executed, left - due.credit_micros))


def may_give_back(bid: Bid, case: EndedJob) -> bool:
    """Whether something of the job goes back at its value; an express job has no such price."""
    return case.is_given_back and bid.slo_s is None and case.work.share < 1


def _choose_kept(undone: UndoneWork | None, bid: Bid, case: EndedJob) -> int:
    """What is kept of the price of a job: what the log says, where something is given back."""
    if undone is None:
        return 0
    if bid.kept_micros is None:
        return undone.compute_kept(None)
    # Its dispute may have been open as its cells went on sale, and decided since.
    if_won = bid.kept_if_won_micros
    return bid.kept_micros if case.is_own_delay or if_won is None else if_won


def find_undone(
    bid: Bid, sold: SoldJob, case: EndedJob, *, slot: int, first_slot: int
) -> UndoneWork | None:
    """What is left of a job that its owner gives back; ``None`` where nothing is given back.

    It ended in ``slot``, and ``first_slot`` is the first whose cells can be sold again.
    """
    undone = 1 - case.work.share
    if not may_give_back(bid, case):
        return None
    assert bid.payment_micros is not None
    whole = bid.payment_micros - math.ceil((bid.parts or {}).get("vendor", 0.0))
    price = min(whole, sold.payment_micros - sold.vendor_micros)
    if not whole or not price:
        return None
    # Prepared data left as much of the work as of the price.
    bought = min(Fraction(1), Fraction(price, whole)) * Fraction(bid.compute_demand)
    return split_undone(
        bid=bid,
        bought=bought,
        units=undone * bought,
        paid_micros=math.floor(price * undone),
        asks_micros=math.floor(sold.asks_micros * undone),
        is_own_delay=case.is_own_delay,
        slot=slot,
        first_slot=first_slot,
    )


def judge_ending(job: Job) -> EndedJob:
    """How a job ended, as far as money goes, and who was at fault."""
    work, slices = measure_executed_work(job), list_slices(job)
    at_fault = tuple(list_organisations_at_fault(job, slices))
    assert job.finished_at is not None
    is_own_delay = _is_own_doing(job, at_fault, at=job.finished_at)
    if job.status == JobStatus.SUCCEEDED:
        refuted = find_refuted_organisation(job)
        # Otherwise an own node could make any job one that all comes back of.
        if refuted is not None and not share_members(job.organisation_id, refuted):
            reason = "Another node found a higher loss on the held-out rows than was reported"
            at_fault = (*(one for one in at_fault if one != refuted), refuted)
            return EndedJob(Ending.FAILED_BY_HOUSE, work, at_fault, reason)
        undone = "Work that early stopping spared"
        if job.finished_at <= job.deadline_at or is_own_delay:
            # To have a job stop at its first evaluation would be another way to cancel it.
            return EndedJob(
                Ending.IN_TIME,
                work,
                reason=undone,
                is_given_back=True,
                is_own_delay=is_own_delay,
            )
        # Steps that a warm start took beyond those sold are no delay of its nodes.
        if not at_fault and not work.overrun:
            at_fault = _find_organisation_at(slices, job.deadline_at)
        return EndedJob(Ending.LATE, work, at_fault, "Credit for the missed deadline", undone)
    if is_own_delay:
        return EndedJob(
            Ending.STOPPED, work, reason=_NOT_DONE, is_given_back=True, is_own_delay=True
        )
    if job.status == JobStatus.FAILED and job.fault == FaultOf.SYSTEM:
        return EndedJob(Ending.FAILED_BY_HOUSE, work, at_fault, "The house failed the job")
    is_late = job.finished_at > job.deadline_at
    if job.status == JobStatus.FAILED and is_late and is_confirmed_by_itself(job):
        # A provider could have its late jobs end so.
        return EndedJob(Ending.LATE, work, at_fault, "Credit for the missed deadline", _NOT_DONE)
    # It was cancelled, or a fault check found the input at fault.
    return _judge_stop(job, work, is_own_delay=is_own_delay, at=job.finished_at)


def judge_stopping(job: Job, *, at: datetime) -> EndedJob:
    """How a job ends that its owner cancels, or whose input is at fault, at a moment.

    All goes back of one that the market does not keep its promise to.
    """
    at_fault = list_organisations_at_fault(job, list_slices(job))
    is_own_delay = _is_own_doing(job, at_fault, at=at)
    return _judge_stop(job, measure_executed_work(job), is_own_delay=is_own_delay, at=at)


def _judge_stop(job: Job, work: ExecutedWork, *, is_own_delay: bool, at: datetime) -> EndedJob:
    is_late = at > job.deadline_at
    if job.finish_planned_at is not None:
        is_late = is_late or job.finish_planned_at > job.deadline_at
    return EndedJob(
        Ending.STOPPED,
        work,
        reason=_NOT_DONE,
        is_given_back=not is_late or is_own_delay,
        is_own_delay=is_own_delay,
    )


def _is_own_doing(job: Job, at_fault: Collection[str], *, at: datetime) -> bool:
    """Whether its owner, or people of its own, held a job up: also as its vendors."""
    failed = list_failed_vendors(job)
    return is_held_up_by_owner(job, at=at) or any(
        share_members(job.organisation_id, one) for one in (*at_fault, *failed)
    )


def _find_organisation_at(slices: Sequence[Slice], at: datetime) -> tuple[str, ...]:
    """The organisation whose node had the job at a moment."""
    return tuple(
        held.node.provider.organisation_id
        for held in slices
        if held.opened_at <= at and (held.closed_at is None or at < held.closed_at)
    )


def describe_sale(
    bid: Bid, job: Job, case: EndedJob, *, now: datetime, credit_percent: int = 0
) -> SoldJob:
    """What the owner paid, after what went back when the data were prepared."""
    assert bid.payment_micros is not None
    preparation = find_preparation(job)
    parts = bid.parts or {}
    asks = compute_asks(
        operational=float(parts.get("operational", 0.0)), payment_micros=bid.payment_micros
    )
    vendor = math.ceil(parts.get("vendor", 0.0))
    # What the vendor cost less went back, and so did the price of unneeded cells, or a part of it.
    late = spared = kept = 0
    if preparation is not None:
        back, spared = preparation.refund_micros, preparation.spared_micros
        late = min(back, max(0, preparation.sold_micros - preparation.price_micros))
        kept = spared - (back - late)
    # What waits for its owner, or for an operator, is paid for if the job is cancelled; so is what
    # was handed in before, if it is what was ordered.
    is_prepared = preparation is not None and (
        preparation.status in DELIVERED or preparation.is_handed_in
    )
    return SoldJob(
        owner_id=bid.organisation_id,
        payment_micros=bid.payment_micros - late - spared,
        asks_micros=cut_asks(
            asks_micros=asks,
            payment_micros=bid.payment_micros - vendor,
            back_micros=spared,
        ),
        house_fee_micros=cut_asks(
            asks_micros=math.floor(parts.get("fee", 0.0)),
            payment_micros=bid.payment_micros - vendor,
            back_micros=spared,
        ),
        vendor_micros=vendor - late if is_prepared else 0,
        is_own_vendor=preparation is not None
        and share_members(bid.organisation_id, preparation.vendor.organisation_id),
        posted_rates=_load_posted_rates(bid),
        given_back_kept_micros=kept,
        # An express job's seat was held for all of it.
        least_percent=0 if bid.slo_s is None else EXPRESS_LEAST_PERCENT,
        starts_micros=_sum_starts(bid, at=job.finished_at or now) if case.is_given_back else 0,
        credit_percent=credit_percent,
    )


def _sum_starts(bid: Bid, *, at: datetime) -> int:
    """What a job's first cells on machines cost that were started for it alone, once it was sold.

    The price of such a cell holds the start (``tiers.offer_inventory``). So who ends a job pays as
    much for it as who lets the job run for a slot. A machine that the job lost does not count.
    """
    cells = Reservation.objects.filter(Q(released_at=None) | Q(released_at__gte=at))
    own = cells.filter(bid=bid, node__rented_at__gte=bid.decided_at)
    left = own.filter(slot__gte=slot_at(bid.zone, at)).values("node_id")
    first = dict(
        own.filter(node__in=left)
        .order_by("-slot")
        .values_list("node_id", "operational_cost_micros")
    )
    # The cells of one that ended before may not be on sale yet.
    ended = Job.objects.filter(bid_id=OuterRef("bid_id"), finished_at__lt=at)
    others = cells.filter(~Exists(ended), node__in=first).exclude(bid=bid)
    shared = set(others.values_list("node_id", flat=True))
    return sum(cost for node_id, cost in first.items() if node_id not in shared)


def _load_posted_rates(bid: Bid) -> dict[str, Fraction] | None:
    """By node, the mean rate a sample that the job had there; ``None`` where asks are paid.

    Cells given back count only where nothing else of the node is known: a job that ended
    early, or was moved, did its work in what it held before.
    """
    rows = Reservation.objects.filter(bid=bid).values_list(
        "node_id", "samples", "posted_rate_micros", "released_at"
    )
    kept: defaultdict[str, list[tuple[Fraction, Fraction]]] = defaultdict(list)
    gone: defaultdict[str, list[tuple[Fraction, Fraction]]] = defaultdict(list)
    for node_id, samples, rate, released_at in rows:
        if rate is None:
            return None
        of = kept if released_at is None else gone
        of[node_id].append((Fraction(samples), Fraction(rate)))
    return {
        node_id: _average(cells) for node_id, cells in sorted((dict(gone) | dict(kept)).items())
    }


def _average(cells: Sequence[tuple[Fraction, Fraction]]) -> Fraction:
    total = sum((samples for samples, _ in cells), Fraction(0))
    if not total:
        return Fraction(0)
    return sum((samples * rate for samples, rate in cells), Fraction(0)) / total


def _find_credit_percent(bid: Bid, job: Job) -> int:
    """What of the payment the owner gets back for a missed deadline."""
    if bid.slo_s is None:
        return settings.SLA_CREDIT_PERCENT
    assert job.finished_at is not None
    late_s = (job.finished_at - job.deadline_at).total_seconds()
    return find_express_refund(late_s=late_s, slo_s=bid.slo_s)


def _find_limits(bid: Bid, case: EndedJob, *, now: datetime) -> HouseLimits:
    """What the market may still bear today for those that the job's end may cost it something for.

    What it bears for its own faults, and for its own nodes, has no limit.
    """
    # A late express job's price goes back by the schedule, without a limit: no more than the
    # market took for it.
    at_fault_id = case.at_fault[-1] if case.at_fault and bid.slo_s is None else None
    if at_fault_id is not None and is_run_by_operator(organisation_id=at_fault_id):
        at_fault_id = None
    wanted = set() if at_fault_id is None else {at_fault_id}
    if case.work.overrun:
        wanted |= {bid.organisation_id, *(node.organisation_id for node in case.work.by_node)}
    left: dict[str, int] = {}
    # Each is locked, always in this order.
    for pk in sorted(wanted):
        is_house = pk != bid.organisation_id and is_run_by_operator(organisation_id=pk)
        left[pk] = MAX_MICROS if is_house else find_exposure_left(organisation_id=pk, now=now)
    return HouseLimits(left_micros=left, at_fault_id=at_fault_id)
