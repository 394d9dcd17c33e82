"""What an operator does to somebody's job: a new plan, an end at the market's cost, money back.

Each takes a reason that the job's owner reads.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from marketplace.accounts.models import Membership, User
from marketplace.accounts.oversight import check_operator, read_reason
from marketplace.auction import locks
from marketplace.auction.models import Bid
from marketplace.common.errors import Conflict, NotAllowed
from marketplace.common.money import format_usd_exact
from marketplace.jobs.locks import lock_job
from marketplace.jobs.models import EventKind, FaultOf, Job
from marketplace.jobs.services import add_job_event, fail_job, request_job_replan
from marketplace.payments.chargebacks import measure_repayable
from marketplace.payments.locks import lock_shares
from marketplace.payments.selectors import measure_refundable
from marketplace.payments.services import refund_charge


def replan_by_operator(*, job: Job, reason: str, asked_by: User, now: datetime) -> Job:
    """Have the auction look for other cells for a job; its owner pays nothing more.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    UserError
        ``invalid_reason``.
    Conflict
        ``job_ended``; ``replan_pending``: it waits for a new plan already.
    """
    check_operator(asked_by)
    words = read_reason(reason)
    with transaction.atomic():
        job = lock_job(job.pk)
        _check_active(job)
        if job.needs_replan:
            raise Conflict("replan_pending", "This job waits for a new plan already.")
        return request_job_replan(
            job=job,
            reason=f"The operator asked for a new plan: {words}",
            now=now,
            is_trouble=False,
        )


def end_by_operator(*, job: Job, reason: str, ended_by: User, now: datetime) -> Job:
    """End a job as one that the market failed: what was paid goes back, as for any such job.

    Raises
    ------
    NotAllowed
        ``operators_only``, or ``own_job``.
    UserError
        ``invalid_reason``.
    Conflict
        ``job_ended``.
    """
    check_operator(ended_by)
    _check_other(ended_by, job.organisation_id)
    words = read_reason(reason)
    with transaction.atomic():
        job = lock_job(job.pk)
        _check_active(job)
        return fail_job(
            job=job,
            fault=FaultOf.SYSTEM,
            reason=f"The operator ended this job: {words}",
            now=now,
        )


def refund_by_operator(
    *, bid: Bid, amount_micros: int, reason: str, refunded_by: User, now: datetime
) -> bool:
    """Give back a part of what a job cost, after it was settled; the market bears it.

    What its nodes earned stays theirs. The same reason and amount twice is one refund. What the
    bank of the card took back is not given back a second time.

    Returns
    -------
    bool
        Whether it was given back now, and not before.

    Raises
    ------
    NotAllowed
        ``operators_only``, or ``own_job``.
    UserError
        ``invalid_reason`` or ``invalid_amount``.
    Conflict
        ``not_settled``: the job runs, or its money is still being moved; ``not_charged``;
        ``refund_exceeds_charge``; ``payment_charged_back``; ``reference_reused``: the same reason
        with another amount; ``not_captured``: the card has not paid yet.
    """
    check_operator(refunded_by)
    _check_other(refunded_by, bid.organisation_id)
    words = read_reason(reason)
    with transaction.atomic():
        # A settlement that goes on now ends first.
        found = Job.objects.filter(bid_id=bid.pk).first()
        job = None if found is None else lock_job(found.pk)
        bid = locks.lock_bid(bid_id=bid.pk)
        # Cells that wait to be sold again pay nodes out of what is left of the price.
        if job is None or job.settled_at is None or bid.rent_due_micros is not None:
            raise Conflict(
                "not_settled",
                "Refund a job once it has ended and its money is settled. To end it now with all "
                "its money back, cancel it.",
            )
        # No chargeback comes between what may go back and the refund.
        lock_shares(hold_reference=bid.hold_reference, buyer_id=bid.organisation_id)
        left = measure_refundable(hold_reference=bid.hold_reference)
        repayable = measure_repayable(hold_reference=bid.hold_reference)
        refund_charge(
            hold_reference=bid.hold_reference,
            amount_micros=amount_micros,
            reason=f"By the operator: {words}",
            now=now,
        )
        is_new = measure_refundable(hold_reference=bid.hold_reference) < left
        if is_new:
            if amount_micros > repayable:
                raise Conflict(
                    "payment_charged_back",
                    f"Only {format_usd_exact(repayable)} can go back: the bank of the card took "
                    "back what is left of the price.",
                    extra={"left_micros": repayable},
                )
            add_job_event(
                job=job,
                kind=EventKind.REFUNDED,
                message=f"The operator gave back {format_usd_exact(amount_micros)}: {words}",
                data={"amount_micros": amount_micros},
                now=now,
            )
    return is_new


def _check_other(operator: User, organisation_id: str) -> None:
    """Refuse an operator whose own organisation would get the money."""
    if Membership.objects.filter(user=operator, organisation=organisation_id).exists():
        raise NotAllowed(
            "own_job",
            "This is a job of your own organisation. Let another operator give its money back.",
        )


def _check_active(job: Job) -> None:
    if not job.is_active:
        raise Conflict("job_ended", f"This job has ended already: {job.status}.")
