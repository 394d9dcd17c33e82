"""Accepting a delivery: by rule, by its owner, or by an operator who decides a dispute."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import transaction

from marketplace.accounts.models import Membership, User
from marketplace.common.errors import Conflict, NotAllowed, UserError
from marketplace.common.money import format_usd
from marketplace.common.queue import enqueue
from marketplace.jobs.models import Dataset, EventKind
from marketplace.jobs.services import add_job_event, give_prepared_data
from marketplace.payments.selectors import measure_refundable
from marketplace.payments.services import (
    refund_charge,
    release_vendor_pay,
    return_vendor_pay,
    withhold_vendor_pay,
)
from marketplace.vendors.locks import lock_open_dispute, lock_preparation
from marketplace.vendors.models import (
    KNOWN_ANSWERS_FAIL,
    DataPlan,
    Dispute,
    Preparation,
    PreparationStatus,
)
from marketplace.vendors.opinions import forget_rows
from marketplace.vendors.plans import count_lost, describe_losses, is_much
from marketplace.vendors.selectors import can_be_disputed, has_spoken
from marketplace.vendors.skills import Skill
from workers.protocol.job_terms import PreparationWish

#: Of a delivery's rows, the share that may be new, and of the original's usable ones, the share
#: that must be there, for the rule to accept it.
ADDED_SHARE_MAX = 0.01
COVERED_SHARE_MIN = 0.5
#: Of the rows that stay by a confirmed plan, the share that a delivery has at least.
PLANNED_SHARE_MIN = 0.95
#: Of a delivery's rows, the share that may say something else where nothing was ordered that
#: rewrites rows: answers under the owner's own questions teach a model anything.
CHANGED_SHARE_MAX = 0.25
#: Of the rows with known answers, the share that a delivery has right at least.
GOLD_SHARE_MIN = 0.8
_REWRITING = frozenset({Skill.LABELLING, Skill.TRANSLATION, Skill.MASKING})
WORDS_MAX = 1000
REFUND_REASON = "A preparation that was not what was ordered"
#: The vendor's work is done and, unless an operator decides otherwise, owed.
DELIVERED = (
    PreparationStatus.DELIVERED,
    PreparationStatus.DISPUTED,
    PreparationStatus.ACCEPTED,
)


def judge_by_rule(
    comparison: Mapping[str, Any], wish: PreparationWish, *, plan: DataPlan | None
) -> str:
    """Say why no owner would take a delivery for their data prepared; empty where it passes.

    It fails for rows that are not the owner's, for too few that are, and for rows rewritten that
    were to be left as they are. Where languages are kept, how many rows are left says nothing.
    """
    if comparison["added"] > ADDED_SHARE_MAX * comparison["rows_out"]:
        return (
            f"{comparison['added']:,} of its {comparison['rows_out']:,} rows cannot be traced to "
            "one row of the original each by their row_id and their words."
        )
    if Skill.TRANSLATION in wish.skills and 2 * comparison["kept"] > comparison["rows_out"]:
        return f"{comparison['kept']:,} of its {comparison['rows_out']:,} rows are not translated."
    is_rewritten = comparison["changed"] > CHANGED_SHARE_MAX * comparison["rows_out"]
    if is_rewritten and not wish.instructions and not _REWRITING.intersection(wish.skills):
        return (
            f"{comparison['changed']:,} of its {comparison['rows_out']:,} rows say something else "
            "than in the original, and nothing was ordered that rewrites them."
        )
    if plan is not None:
        if comparison["rows_out"] < PLANNED_SHARE_MIN * plan.rows:
            return f"It has {comparison['rows_out']:,} rows; by the plan {plan.rows:,} stay."
    elif not wish.languages and comparison["covered"] < COVERED_SHARE_MIN * comparison["distinct"]:
        return (
            f"It has {comparison['covered']:,} of the original's {comparison['distinct']:,} "
            "different usable rows."
        )
    # Last: what the data say against a delivery, no operator need decide. How many are right
    # would let a vendor find out which they are.
    is_known = comparison["gold_right"] >= GOLD_SHARE_MIN * comparison["gold"]
    return "" if is_known else KNOWN_ANSWERS_FAIL


def judge_as_planned(made: Mapping[str, Any], plan: DataPlan | None) -> str:
    """Say in what a program's work is not what its owner agreed to; empty where it is.

    Parameters
    ----------
    made
        ``workers.preparation.PreparationPlan`` of what was done, as JSON.
    plan
        The confirmed one. Without it a share of the rows may be left out.
    """
    if plan is not None:
        is_same = made["digest"] == plan.plan["digest"]
        return "" if is_same else "The program did something else than the plan says."
    lost = count_lost(made["summary"])
    if not is_much(lost, made["summary"]):
        return ""
    return (
        f"{lost:,} of {made['summary']['rows_in']:,} rows are left out. "
        f"{describe_losses(made['summary'])}"
    )


def accept(*, preparation: Preparation, now: datetime) -> Preparation:
    """Let the job train on what was delivered; twice changes nothing.

    Raises
    ------
    Conflict
        ``nothing_delivered``, ``disputed``, or ``job_ended``.
    """
    with transaction.atomic():
        held = lock_preparation(preparation.pk)
        if held.status == PreparationStatus.ACCEPTED:
            return held
        if held.status == PreparationStatus.DISPUTED:
            raise Conflict("disputed", "An operator decides about this delivery.")
        _accept(held, now=now)
    return held


def _accept(held: Preparation, *, now: datetime) -> None:
    if held.prepared is None or held.status not in DELIVERED:
        raise Conflict("nothing_delivered", "There is no delivery to accept.")
    give_prepared_data(
        job=held.job,
        dataset=held.prepared,
        held_out=held.held_out,
        message=describe_result(held),
        now=now,
    )
    mark_accepted(held, now=now)


def mark_accepted(held: Preparation, *, now: datetime) -> None:
    """Owe the vendor its price, whether or not a job trains on it. Call while holding it."""
    held.status, held.accepted_at = PreparationStatus.ACCEPTED, now
    held.save(update_fields=["status", "accepted_at"])
    delivered = Dataset.everything.filter(pk__in=[held.prepared_id, held.held_out_id])
    delivered.update(is_withheld=False)
    enqueue("auction.preparations_conclude")


def describe_result(preparation: Preparation) -> str:
    """One sentence for the job's history."""
    beside = f", {preparation.rows_held_out:,} held out" if preparation.rows_held_out else ""
    return (
        f"{preparation.vendor.name} prepared the data: {preparation.rows_in:,} rows in, "
        f"{preparation.rows_out:,} out{beside}."
    )


def send_back(held: Preparation, *, reason: str) -> None:
    """Take the work from a vendor whose delivery was refused. Call while holding it."""
    held.status = PreparationStatus.WORKING
    held.submitted_at, held.problem = None, reason
    held.save(update_fields=["status", "submitted_at", "problem"])
    enqueue("auction.preparations_conclude")


def refuse_delivery(
    *, preparation: Preparation, reason: str, refused_by: User, now: datetime
) -> Dispute | None:
    """Say that a delivery is not what was ordered; an operator decides. Twice is one dispute.

    Their words are added to a dispute that second opinions opened.

    Where the data say so too there is nothing to decide, and no dispute: the next vendor gets the
    work, or everything is refunded. One that waits for its owner is refused, and the job waits. Of
    one that the rule accepted the job may have been trained: then it is about the vendor's pay,
    which waits.

    Raises
    ------
    UserError
        ``invalid_dispute``: no reason.
    Conflict
        ``not_disputable``: there is no such delivery, or the time for it is over.
    """
    with transaction.atomic():
        held = lock_preparation(preparation.pk)
        if held.status == PreparationStatus.DELIVERED and held.is_refused_by_rule:
            send_back(held, reason=held.objection)
            return None
        reason = read_words(reason, "Say what is wrong with the delivery", code="invalid_dispute")
        earlier = lock_open_dispute(held)
        if earlier is not None:
            if not has_spoken(held):
                # Those who gave opinions are never of the owner's organisation.
                earlier.reason, earlier.opened_by = f"{earlier.reason}\n{reason}", refused_by
                earlier.save(update_fields=["reason", "opened_by"])
            return earlier
        if held.status == PreparationStatus.ACCEPTED:
            if not can_be_disputed(held, now=now):
                raise Conflict("not_disputable", "This delivery can be disputed no more.")
            withhold_vendor_pay(hold_reference=held.paid_from, now=now)
            message = "You ask for the price of the preparation back. An operator decides."
        else:
            waits = held.status == PreparationStatus.DELIVERED and held.job.is_active
            if not waits or held.accept_by is None or held.accept_by <= now:
                raise Conflict("not_disputable", "There is no delivery now that can be refused.")
            held.status = PreparationStatus.DISPUTED
            held.save(update_fields=["status"])
            message = "You refused the delivery of the data. An operator decides."
        add_job_event(
            job=held.job,
            kind=EventKind.DISPUTED,
            message=message,
            actor=refused_by.pk,
            now=now,
        )
        return Dispute.objects.create(
            preparation=held, vendor=held.vendor, reason=reason, opened_by=refused_by, opened_at=now
        )


def decide_dispute(
    *, dispute: Dispute, is_for_owner: bool, words: str, decided_by: User, now: datetime
) -> Dispute:
    """Accept the disputed delivery, or take the work, or its pay, from its vendor. Once.

    Raises
    ------
    NotAllowed
        ``operators_only``, or ``own_dispute``: the operator belongs to the side that would gain.
        One may decide against one's own.
    UserError
        ``invalid_decision``: no words.
    Conflict
        ``dispute_decided``.
    """
    if not decided_by.is_operator:
        raise NotAllowed("operators_only", "Only an operator decides disputes.")
    words = read_words(words, "Say to both sides why", code="invalid_decision")
    with transaction.atomic():
        held = lock_preparation(dispute.preparation_id)
        found = lock_open_dispute(held)
        if found is None or found.pk != dispute.pk:
            raise Conflict("dispute_decided", "This dispute is decided already.")
        gains = held.job.organisation_id if is_for_owner else found.vendor.organisation_id
        if Membership.objects.filter(user=decided_by, organisation=gains).exists():
            raise NotAllowed(
                "own_dispute",
                "This decision would benefit your own organisation. Decide for the other side, or "
                "let another operator decide.",
            )
        found.decided_at, found.decided_by = now, decided_by
        found.is_for_owner, found.words = is_for_owner, words
        found.save()
        side = "for you" if is_for_owner else "for the vendor"
        add_job_event(
            job=held.job,
            kind=EventKind.DISPUTED,
            message=f"The dispute about the data was decided {side}: {words}",
            actor=decided_by.pk,
            now=now,
        )
        if held.status == PreparationStatus.ACCEPTED:
            _settle_pay(held, is_for_owner=is_for_owner, now=now)
            forget_rows(held)
        elif is_for_owner:
            send_back(held, reason="The delivery was refused.")
        elif held.job.is_active:
            _accept(held, now=now)
        else:
            mark_accepted(held, now=now)
    return found


def _settle_pay(held: Preparation, *, is_for_owner: bool, now: datetime) -> None:
    """Give the vendor's pay to who was right. Call while holding the preparation."""
    if not is_for_owner:
        release_vendor_pay(hold_reference=held.paid_from)
        return
    returned = return_vendor_pay(hold_reference=held.paid_from, now=now)
    # The owner's part of the vendor's pay; the market paid the rest. What a refund of the whole
    # payment gave back already stays with the house.
    paid = min(held.sold_micros, held.price_micros)
    owed = min(paid, measure_refundable(hold_reference=held.paid_from))
    if not returned or not owed:
        return
    refund_charge(hold_reference=held.paid_from, amount_micros=owed, reason=REFUND_REASON, now=now)
    add_job_event(
        job=held.job,
        kind=EventKind.REFUNDED,
        message=f"{REFUND_REASON}: {format_usd(owed)} went back to your wallet.",
        data={"amount_micros": owed},
        now=now,
    )


def read_words(text: str, what: str, *, code: str) -> str:
    """Read what somebody wrote about a dispute; a refusal asks for ``what``."""
    words = text.replace("\0", "").strip()
    if not 1 <= len(words) <= WORDS_MAX:
        raise UserError(code, f"{what}, in at most {WORDS_MAX:,} letters.", param="words")
    return words
