"""Results that are found wanting after their money was shared out.

An owner may dispute a result: another provider's node measures it, and where that settles nothing,
an operator decides. A node that two others, or a verified one, contradict loses all pay that has
not matured, but of results that were measured: it goes back to the owners.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime

from django.db import transaction

from marketplace.accounts.models import Membership, User
from marketplace.auction import locks
from marketplace.auction.models import Bid, ResultDispute, WorkShare
from marketplace.auction.models.disputes import DISPUTABLE_FOR
from marketplace.checks.models import SpotCheck
from marketplace.checks.scores import (
    can_be_measured,
    find_refuted_organisation,
    find_score_check,
    open_disputed_score,
)
from marketplace.common.errors import Conflict, NotAllowed
from marketplace.common.money import format_usd
from marketplace.jobs.locks import lock_job
from marketplace.jobs.models import Artifact, EventKind, Job, JobStatus
from marketplace.jobs.services import add_job_event
from marketplace.payments.idle_pay import list_idle_earners, return_idle_pay
from marketplace.payments.locks import lock_shares
from marketplace.payments.returned_pay import (
    list_unpaid_references,
    release_pay,
    return_pay,
    withhold_pay,
)
from marketplace.payments.selectors import measure_refundable
from marketplace.payments.services import refund_charge
from marketplace.vendors.acceptance import read_words

log = logging.getLogger(__name__)

_REFUTED = "A result that is not what was trained"
_UNRELIABLE = "Pay of a node whose results cannot be relied on"


def can_be_disputed(job: Job, *, now: datetime) -> bool:
    """Whether the owner may say that a result is not what was trained."""
    if job.status != JobStatus.SUCCEEDED or job.settled_at is None:
        return False
    if now >= job.settled_at + DISPUTABLE_FOR:
        return False
    if not Artifact.objects.filter(job=job).exists():
        return False  # its owner deleted it
    return not ResultDispute.objects.filter(bid=job.bid_id).exists()


def open_result_dispute(*, job: Job, reason: str, opened_by: User, now: datetime) -> ResultDispute:
    """Say that a result is not what was trained; twice is one dispute.

    The providers' pay waits. A node of another provider measures the loss on the held-out rows.

    Raises
    ------
    UserError
        ``invalid_dispute``: no reason.
    Conflict
        ``not_disputable``: there is no settled result, or the time for it is over.
    """
    reason = read_words(reason, "Say what is wrong with the result", code="invalid_dispute")
    with transaction.atomic():
        job = lock_job(job.pk)
        bid = locks.lock_bid(bid_id=job.bid_id)
        earlier = ResultDispute.objects.filter(bid=bid).first()
        if earlier is not None:
            return earlier
        if not can_be_disputed(job, now=now):
            raise Conflict(
                "not_disputable",
                f"A result can be disputed within {DISPUTABLE_FOR.days} days of its settlement.",
            )
        dispute = ResultDispute.objects.create(
            bid=bid, reason=reason, opened_by=opened_by, opened_at=now
        )
        withhold_pay(hold_reference=bid.hold_reference, now=now)
        is_asked = can_be_measured(job) and open_disputed_score(job, now=now)
        who = "Another provider's node measures it." if is_asked else "An operator decides."
        add_job_event(
            job=job,
            kind=EventKind.DISPUTED,
            message=f"You dispute the result. {who}",
            actor=opened_by.pk,
            now=now,
        )
    return dispute


def find_dispute(job: Job) -> ResultDispute | None:
    """The dispute about a job's result, open or decided."""
    return ResultDispute.objects.filter(bid=job.bid_id).first()


def list_open_disputes() -> list[ResultDispute]:
    """Disputes that are not decided, the oldest first."""
    waiting = ResultDispute.objects.filter(decided_at=None).order_by("opened_at", "pk")
    return list(waiting.select_related("bid__organisation", "opened_by"))


def conclude_disputes(*, now: datetime) -> int:
    """Decide the disputes that another node's measure settles; how many."""
    decided = 0
    for dispute in list_open_disputes():
        job = Job.objects.get(bid_id=dispute.bid_id)
        if find_refuted_organisation(job) is not None:
            words = "Another node found a higher loss on the held-out rows than was reported."
            decided += _conclude(dispute, is_for_owner=True, words=words, now=now)
            continue
        last = find_score_check(job)
        if last is None or last.created_at < dispute.opened_at or last.agrees is not True:
            continue
        words = (
            f"Another provider's node found a loss of {last.found_score:.3f} on the held-out rows; "
            f"{last.claimed_score:.3f} was reported."
        )
        decided += _conclude(dispute, is_for_owner=False, words=words, now=now)
    return decided


def decide_result_dispute(
    *, dispute: ResultDispute, is_for_owner: bool, words: str, decided_by: User, now: datetime
) -> None:
    """Decide a dispute as an operator, once.

    Raises
    ------
    NotAllowed
        ``operators_only``, or ``own_dispute``: the operator belongs to the side that would gain.
    UserError
        ``invalid_decision``: no words.
    Conflict
        ``dispute_decided``.
    """
    if not decided_by.is_operator:
        raise NotAllowed("operators_only", "Only an operator decides disputes.")
    words = read_words(words, "Say to both sides why", code="invalid_decision")
    executors = WorkShare.objects.filter(bid=dispute.bid_id).values_list("organisation", flat=True)
    gain = {dispute.bid.organisation_id} if is_for_owner else set(executors)
    if Membership.objects.filter(user=decided_by, organisation__in=gain).exists():
        raise NotAllowed(
            "own_dispute",
            "This decision would benefit your own organisation. Decide for the other side, or let "
            "another operator decide.",
        )
    if not _conclude(
        dispute, is_for_owner=is_for_owner, words=words, decided_by=decided_by, now=now
    ):
        raise Conflict("dispute_decided", "This dispute is decided already.")


def _conclude(
    dispute: ResultDispute,
    *,
    is_for_owner: bool,
    words: str,
    now: datetime,
    decided_by: User | None = None,
) -> bool:
    with transaction.atomic():
        job = lock_job(Job.objects.get(bid_id=dispute.bid_id).pk)
        bid = locks.lock_bid(bid_id=dispute.bid_id)
        found = ResultDispute.objects.get(pk=dispute.pk)
        if found.decided_at is not None:
            return False
        found.decided_at, found.decided_by = now, decided_by
        found.is_for_owner, found.words = is_for_owner, words
        found.save(update_fields=["decided_at", "decided_by", "is_for_owner", "words"])
        side = "for you" if is_for_owner else "for the provider"
        add_job_event(
            job=job,
            kind=EventKind.DISPUTED,
            message=f"The dispute about the result was decided {side}. {words}",
            now=now,
        )
        if not is_for_owner:
            release_pay(hold_reference=bid.hold_reference)
            return True
        refuted = find_refuted_organisation(job)
        shares = WorkShare.objects.filter(bid=bid).values_list("organisation_id", flat=True)
        # An operator's decision names no node: all who did the work lose its pay.
        owners = {refuted} if refuted is not None else set(shares)
        _lock_money(bid, owners | list_idle_earners(bid.hold_reference))
        for owner in sorted(owners):
            _return_pay(bid, owner, now=now)
        return_idle_pay(hold_reference=bid.hold_reference, now=now)
        release_pay(hold_reference=bid.hold_reference)
        left = measure_refundable(hold_reference=bid.hold_reference)
        _refund(bid, job, left, reason=_REFUTED, now=now)
    return True


def take_back_pay(*, now: datetime) -> int:
    """Give owners back what nodes that failed a check have earned and not been paid; bids."""
    failed = SpotCheck.objects.filter(failed_at__isnull=False, pay_returned_at=None)
    returned = 0
    for check in failed.select_related("slice__node__provider").order_by("failed_at", "pk"):
        node = check.checked_node
        owner = node.provider.organisation.pk
        references = set(list_unpaid_references(organisation_id=owner))
        shares = WorkShare.objects.filter(node=node).select_related("bid").order_by("bid_id")
        for share in shares:
            if share.bid.hold_reference in references:
                returned += _take_back(share.bid, owner, now=now)
        SpotCheck.objects.filter(pk=check.pk).update(pay_returned_at=now)
    return returned


def _take_back(bid: Bid, owner: str, *, now: datetime) -> bool:
    """Give a bid's owner back what a provider earned with it, unless the result was measured."""
    job = Job.objects.get(bid_id=bid.pk)
    measured = find_score_check(job)
    if measured is not None and measured.agrees:
        return False
    with transaction.atomic():
        job = lock_job(job.pk)
        bid = locks.lock_bid(bid_id=bid.pk)
        _lock_money(bid, {owner})
        amount = _return_pay(bid, owner, now=now)
        owed = min(amount, measure_refundable(hold_reference=bid.hold_reference))
        _refund(bid, job, owed, reason=_UNRELIABLE, now=now)
    log.warning("pay of %s for %s went back to its owner", owner, bid.pk)
    return amount > 0


def _lock_money(bid: Bid, owners: Iterable[str]) -> None:
    lock_shares(hold_reference=bid.hold_reference, buyer_id=bid.organisation_id, earner_ids=owners)


def _return_pay(bid: Bid, owner: str, *, now: datetime) -> int:
    amount = return_pay(hold_reference=bid.hold_reference, organisation_id=owner, now=now)
    if amount:
        WorkShare.objects.filter(bid=bid, organisation=owner).update(paid_micros=0)
    return amount


def _refund(bid: Bid, job: Job, amount_micros: int, *, reason: str, now: datetime) -> None:
    if not amount_micros:
        return
    refund_charge(
        hold_reference=bid.hold_reference, amount_micros=amount_micros, reason=reason, now=now
    )
    add_job_event(
        job=job,
        kind=EventKind.REFUNDED,
        message=f"{reason}: {format_usd(amount_micros)} went back to your wallet.",
        data={"amount_micros": amount_micros},
        now=now,
    )
