"""The life of a preparation up to its delivery; what follows from it is the auction's.

A worker works under a claim: one that dies leaves a claim that runs out, and a result counts only
under the current claim and only while its vendor still has the work. The same worker gets data
ready for people and outside vendors, and checks what they hand in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.core.files import File
from django.db import transaction
from django.db.models import Q
from django.db.models.fields.files import FieldFile

from marketplace.common.errors import Conflict, MarketFault, UserError
from marketplace.common.ids import new_id
from marketplace.common.queue import enqueue
from marketplace.fleet.selectors import slot_starts_at
from marketplace.jobs.models import Dataset, EventKind
from marketplace.jobs.services import add_job_event
from marketplace.vendors.acceptance import accept, judge_by_rule, mark_accepted
from marketplace.vendors.deliveries import (
    DeliveredData,
    check_delivery,
    check_rows,
    open_source,
    open_submission,
)
from marketplace.vendors.handed_files import Delivery
from marketplace.vendors.handover import store_hand_over
from marketplace.vendors.kinds import get_work
from marketplace.vendors.locks import lock_first, lock_preparation
from marketplace.vendors.models import (
    KNOWN_ANSWERS_FAIL,
    Preparation,
    PreparationStatus,
    RowOpinion,
    WorkRow,
)
from marketplace.vendors.opinions import draw_sample
from marketplace.vendors.plans import find_sold_plan
from marketplace.vendors.preparing import WALL_S, compare_in_process, finish_in_process
from marketplace.vendors.wishes import parse_wish

log = logging.getLogger(__name__)

#: A claim older than this belongs to a worker that is gone.
CLAIM_LIFE = timedelta(seconds=WALL_S + 120)
ATTEMPTS_MAX = 3
#: Deliveries of one vendor that may be refused before it loses the work.
REFUSALS_MAX = 5
_PROBLEM_CHARS = 500
#: What its owner may do about a delivery, by whether the rule refuses it.
_OWNERS_CHOICE = {
    True: "You may accept it all the same. Otherwise it counts as refused.",
    False: "You may refuse it, and an operator decides. Otherwise it counts as accepted.",
}


@dataclass(frozen=True, slots=True)
class NewPreparation:
    """The work that a vendor gets with an admitted bid."""

    bid_id: str
    job_id: str
    source_id: str
    wish: dict[str, Any]
    rows_bound: int
    vendor_id: str
    price_micros: int
    ready_slot: int
    due_at: datetime
    #: ``VendorOffer.to_json`` of the vendors that did not get it.
    other_offers: list[list[Any]]


def open_preparations(*, wanted: Iterable[NewPreparation], now: datetime) -> None:
    """Give vendors their work; call in the transaction that admits the bids."""
    opened = Preparation.objects.bulk_create(
        Preparation(
            bid_id=of.bid_id,
            job_id=of.job_id,
            source_id=of.source_id,
            wish=of.wish,
            rows_bound=of.rows_bound,
            vendor_id=of.vendor_id,
            price_micros=of.price_micros,
            sold_micros=of.price_micros,
            ready_slot=of.ready_slot,
            due_at=of.due_at,
            other_offers=of.other_offers,
            created_at=now,
        )
        for of in wanted
    )
    if opened:
        enqueue("vendors.prepare")


def prepare_next(*, clock: Callable[[], datetime]) -> bool:
    """Do the next piece of work there is; whether there was one.

    What a kind of vendor does with new work (``kinds``), and checking what was handed in.
    """
    mine = _claim(now=clock())
    if mine is None:
        return False
    try:
        if mine.submitted_at is not None:
            _check_submission(mine, clock=clock)
        else:
            _begin(mine, clock=clock)
    except UserError as refusal:
        give_up(preparation=mine, claim=mine.claim, reason=refusal.message)
    except MarketFault:
        # The next attempt begins when the claim has run out, until there are no more.
        log.exception("preparation %s failed", mine.pk)
    return True


def _claim(*, now: datetime) -> Preparation | None:
    with transaction.atomic():
        due = Preparation.objects.filter(
            Q(handed_over_at__isnull=True) | Q(submitted_at__isnull=False),
            status=PreparationStatus.WORKING,
            problem="",
        ).exclude(claimed_at__gt=now - CLAIM_LIFE)
        found = lock_first(due.order_by("due_at", "pk"))
        if found is None:
            return None
        found.claim, found.claimed_at = new_id("claim"), now
        found.attempts += 1
        if found.attempts > ATTEMPTS_MAX:
            found.problem = "The vendor's program failed again and again."
        found.save(update_fields=["claim", "claimed_at", "attempts", "problem"])
    return None if found.problem else lock_free(found.pk)


def lock_free(preparation_id: str) -> Preparation:
    """The preparation with what its work is done from, not locked."""
    found = Preparation.objects.select_related("vendor", "source__zone", "job__zone")
    return found.get(pk=preparation_id)


def _begin(mine: Preparation, *, clock: Callable[[], datetime]) -> None:
    """Have the vendor's kind do the work, or get the data ready for it."""
    work = get_work(mine.vendor)
    with open_source(mine) as (raw, folder):
        begun = work.begin(mine, parse_wish(mine.wish), raw=raw, folder=folder)
        if isinstance(begun, Delivery):
            deliver(preparation=mine, delivery=begun, claim=mine.claim, now=clock())
            return
        # Together: nobody else would tell a vendor of data that are there.
        with transaction.atomic():
            if store_hand_over(preparation=mine, data=begun, claim=mine.claim, now=clock()):
                work.announce(mine, now=clock())


def _check_submission(mine: Preparation, *, clock: Callable[[], datetime]) -> None:
    """Check what people or an outside vendor handed in, and finish it.

    What fails the rule may be put right and handed in again, what fails known answers once. The
    last time, and where the owner looks at it anyway, it goes to the owner.
    """
    wish = parse_wish(mine.wish)
    try:
        with open_source(mine) as (raw, folder), open_submission(mine) as handed_in:
            check_rows(mine, handed_in)
            comparison = compare_in_process(raw, delivered=handed_in, wish=wish)
            plan = find_sold_plan(wish, dataset=mine.source)
            objection = judge_by_rule(comparison, wish, plan=plan)
            chances = 2 if objection == KNOWN_ANSWERS_FAIL else REFUSALS_MAX
            if objection and not wish.review_s and len(mine.refusals) + 1 < chances:
                raise UserError("invalid_delivery", objection)
            out = folder / "out"
            summary = finish_in_process(handed_in, folder=out, wish=wish)["summary"]
            changes = folder / "changes.jsonl"
            work = get_work(mine.vendor)
            work.write_changes(mine, changes)
            delivery = Delivery(
                training=out / "train.jsonl",
                held_out=out / "validation.jsonl" if summary["rows_held_out"] else None,
                changes=changes,
                origins=out / "origins.jsonl",
                report=summary | {"rows_in": comparison["rows_in"]},
                comparison=comparison,
                objection=objection,
                opinions=draw_sample(mine, rows=work.iter_rows(mine), delivered=handed_in),
            )
            deliver(preparation=mine, delivery=delivery, claim=mine.claim, now=clock())
    except Conflict:
        raise
    except UserError as refusal:
        refuse_submission(preparation=mine, claim=mine.claim, reason=refusal.message, now=clock())


def deliver(
    *, preparation: Preparation, delivery: Delivery, claim: str, now: datetime
) -> Preparation:
    """Take a vendor's delivery, which is accepted by rule unless its owner is to decide.

    Its owner decides where they asked for a time to look at it, and where the rule objects.

    Raises
    ------
    UserError
        As ``check_delivery``.
    Conflict
        ``delivery_too_late``: the vendor has the work no more. Nothing is stored.
    """
    data = check_delivery(preparation, delivery, now=now)
    try:
        with transaction.atomic():
            held = lock_preparation(preparation.pk)
            if held.claim != claim or held.status != PreparationStatus.WORKING or held.problem:
                raise Conflict("delivery_too_late", "Another vendor has this work now.")
            _store_delivery(held, data, delivery, now=now)
            if held.accept_by is None:
                # Who ends the job while work that was handed in is checked has had it done.
                if held.job.is_active or held.submitted_at is None:
                    accept(preparation=held, now=now)
                else:
                    mark_accepted(held, now=now)
    except BaseException:
        data.delete_files()
        raise
    return held


def _store_delivery(
    held: Preparation, data: DeliveredData, delivery: Delivery, *, now: datetime
) -> None:
    zone = held.job.zone
    training = data.training.save(zone)
    held_out = None if data.held_out is None else data.held_out.save(zone)
    held.prepared, held.held_out = training, held_out
    held.rows_in = delivery.report.get("rows_in", held.rows_bound)
    held.rows_out, held.rows_held_out = training.rows, held_out.rows if held_out else 0
    held.report, held.status, held.delivered_at = delivery.report, PreparationStatus.DELIVERED, now
    held.comparison, held.objection = delivery.comparison, delivery.objection[:_PROBLEM_CHARS]
    is_reviewed = held.vendor.facts.is_reviewed and parse_wish(held.wish).review_s > 0
    if is_reviewed or held.objection:
        until = slot_starts_at(zone, held.ready_slot)
        # One that came too late for its owner to decide is disputed for its price, as any that
        # the rule accepts.
        held.accept_by = until if until > now or held.is_refused_by_rule else None
    if held.objection:
        add_job_event(
            job=held.job,
            kind=EventKind.DISPUTED,
            message=f"The rule does not accept what {held.vendor.name} delivered: {held.objection} "
            + _OWNERS_CHOICE[held.is_refused_by_rule],
            now=now,
        )
    for file, path in ((held.changes, delivery.changes), (held.origins, delivery.origins)):
        if path is not None and path.is_file():
            with path.open("rb") as content:
                file.save(f"{held.pk}-{file.field.name}.jsonl", File(content), save=False)
    held.save()
    RowOpinion.objects.bulk_create(delivery.opinions)


def refuse_submission(*, preparation: Preparation, claim: str, reason: str, now: datetime) -> None:
    """Give work back to a vendor whose delivery cannot be used. Counts under the claim only."""
    with transaction.atomic():
        held = lock_preparation(preparation.pk)
        if held.claim != claim or held.status != PreparationStatus.WORKING:
            return
        held.refusals = [*held.refusals, {"at": now.isoformat(), "reason": reason}]
        held.submitted_at = held.claimed_at = None
        held.claim, held.attempts = "", 0
        if len(held.refusals) >= REFUSALS_MAX:
            held.problem = f"The vendor's deliveries could not be used. {reason}"[:_PROBLEM_CHARS]
            enqueue("auction.preparations_conclude")
        held.save()


def give_up(*, preparation: Preparation, claim: str, reason: str) -> None:
    """The vendor will not deliver: the auction finds the next one. Counts under the claim only."""
    with transaction.atomic():
        held = lock_preparation(preparation.pk)
        if held.claim == claim and held.status == PreparationStatus.WORKING:
            held.problem = reason[:_PROBLEM_CHARS]
            held.save(update_fields=["problem"])
            enqueue("auction.preparations_conclude")


def give_to_next_vendor(
    *,
    held: Preparation,
    offer: Sequence[Any],
    ready_slot: int,
    due_at: datetime,
    reason: str,
    now: datetime,
) -> None:
    """Put another vendor in the place of one that did not deliver. Call while holding it."""
    vendor_id, price_micros, *_ = offer
    held.replaced_for_id, held.replaced_at = held.vendor.organisation_id, now
    held.missed = [*held.missed, {"vendor": held.vendor_id, "reason": reason}]
    if vendor_id != held.vendor_id:
        _forget_work(held)
    held.other_offers = [other for other in held.other_offers if other[0] != vendor_id]
    held.vendor_id, held.price_micros = vendor_id, price_micros
    held.ready_slot, held.due_at = ready_slot, due_at
    held.save()
    enqueue("vendors.prepare")


def forget_copies(held: Preparation) -> None:
    """Delete what was made of an owner's data for a vendor, and of a vendor's work for a check.

    Call while holding it; its row is saved.
    """
    WorkRow.objects.filter(preparation=held).delete()
    for file in (held.copy, held.submission):
        _delete_file(file)
    held.save(update_fields=["copy", "submission"])


def _discard_delivery(held: Preparation) -> None:
    """Delete data that a vendor delivered and that were not accepted. Call while holding it."""
    RowOpinion.objects.filter(preparation=held).delete()
    pks = [pk for pk in (held.prepared_id, held.held_out_id) if pk is not None]
    held.prepared = held.held_out = None
    held.save(update_fields=["prepared", "held_out"])
    for dataset in Dataset.everything.filter(pk__in=pks, is_withheld=True):
        _delete_file(dataset.file)
        dataset.delete()
    for file in (held.changes, held.origins):
        _delete_file(file)
    held.save(update_fields=["changes", "origins"])


def _delete_file(file: FieldFile) -> None:
    """Delete a stored file once the transaction commits."""
    if file.name:
        transaction.on_commit(partial(file.storage.delete, file.name), robust=True)
        file.name = ""


def _forget_work(held: Preparation) -> None:
    """Nothing of one vendor's work is for the next one's eyes."""
    _discard_delivery(held)
    forget_copies(held)
    held.claim, held.claimed_at, held.attempts, held.problem = "", None, 0, ""
    held.handed_over_at = held.begun_at = held.submitted_at = None
    held.refusals = []
    held.comparison, held.objection = None, ""
    held.delivered_at = held.accept_by = None
    held.rows_out = held.rows_held_out = None
    held.report = {}


def close(*, held: Preparation, status: PreparationStatus, now: datetime, reason: str = "") -> None:
    """End a preparation whose data no job trains on. Call while holding it."""
    held.status, held.concluded_at, held.claim = status, now, ""
    if reason:
        held.missed = [*held.missed, {"vendor": held.vendor_id, "reason": reason}]
    held.save(update_fields=["status", "concluded_at", "claim", "missed"])
    _discard_delivery(held)
    forget_copies(held)
