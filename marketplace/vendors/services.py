"""The life of a preparation up to its acceptance; what follows from it is the auction's.

A worker prepares under a claim: one that dies leaves a claim that runs out, and a result counts
only under the current claim and only while its vendor still has the work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.core.files import File
from django.db import transaction

from marketplace.accounts.models import Organisation, User
from marketplace.common.errors import Conflict, MarketFault, NotAllowed, UserError
from marketplace.common.ids import new_id
from marketplace.common.queue import enqueue
from marketplace.fleet.models import Zone
from marketplace.jobs.services import give_prepared_data
from marketplace.vendors.deliveries import DeliveredData, Delivery, check_delivery, open_source
from marketplace.vendors.locks import lock_first, lock_preparation, lock_vendor
from marketplace.vendors.models import (
    Listing,
    Preparation,
    PreparationStatus,
    Vendor,
    VendorKind,
)
from marketplace.vendors.preparing import WALL_S, prepare_in_process
from marketplace.vendors.quoting import QuoteFunction
from marketplace.vendors.wishes import parse_wish

log = logging.getLogger(__name__)

#: A claim older than this belongs to a worker that is gone.
CLAIM_LIFE = timedelta(seconds=WALL_S + 120)
ATTEMPTS_MAX = 3
_PROBLEM_CHARS = 500


def register_vendor(
    *,
    organisation: Organisation,
    name: str,
    kind: VendorKind,
    skills: Sequence[str],
    quotes: QuoteFunction,
    rows_per_slot: Mapping[Zone, int],
    now: datetime,
) -> Vendor:
    """List a vendor, or put its new terms in place; it gets work once an operator approves it."""
    with transaction.atomic():
        terms = {
            "kind": kind,
            "skills": list(skills),
            "minimum_micros": quotes.minimum_micros,
            "micros_per_1000_rows": quotes.micros_per_1000_rows,
            "micros_per_1000_tokens": quotes.micros_per_1000_tokens,
            "base_s": quotes.base_s,
            "s_per_1000_rows": quotes.s_per_1000_rows,
            "valid_until": quotes.valid_until,
        }
        vendor, _ = Vendor.objects.update_or_create(
            organisation=organisation,
            name=name,
            defaults=terms,
            create_defaults=terms | {"created_at": now},
        )
        for zone, rows in rows_per_slot.items():
            Listing.objects.update_or_create(
                vendor=vendor, zone=zone, defaults={"rows_per_slot": rows}
            )
    return vendor


def approve_vendor(*, vendor: Vendor, approved_by: User | None, now: datetime) -> Vendor:
    """Let a vendor get work; twice changes nothing. ``None``: the house approves its own.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    """
    if approved_by is not None:
        _check_operator(approved_by)
    with transaction.atomic():
        vendor = lock_vendor(vendor.pk)
        if vendor.approved_at is None:
            vendor.approved_at, vendor.approved_by = now, approved_by
            vendor.save(update_fields=["approved_at", "approved_by"])
    return vendor


def pause_vendor(*, vendor: Vendor, paused_by: User, now: datetime) -> Vendor:
    """Give a vendor no new work; what it has goes on. Twice changes nothing.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    """
    _check_operator(paused_by)
    with transaction.atomic():
        vendor = lock_vendor(vendor.pk)
        if vendor.paused_at is None:
            vendor.paused_at = now
            vendor.save(update_fields=["paused_at"])
    return vendor


def resume_vendor(*, vendor: Vendor, resumed_by: User) -> Vendor:
    """Let a paused vendor get work again.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    """
    _check_operator(resumed_by)
    with transaction.atomic():
        vendor = lock_vendor(vendor.pk)
        vendor.paused_at = None
        vendor.save(update_fields=["paused_at"])
    return vendor


def _check_operator(user: User) -> None:
    if not user.is_operator:
        raise NotAllowed("operators_only", "Only an operator approves and pauses vendors.")


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
    #: ``Offer.to_json`` of the vendors that did not get it.
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
    """Do the automatic vendor's next piece of work; whether there was one."""
    mine = _claim(now=clock())
    if mine is None:
        return False
    try:
        with open_source(mine) as (raw, folder):
            out = folder / "out"
            summary = prepare_in_process(raw, folder=out, wish=parse_wish(mine.wish))
            delivery = Delivery(
                training=out / "train.jsonl",
                held_out=out / "validation.jsonl" if summary["rows_held_out"] else None,
                changes=out / "changes.jsonl",
                report=summary,
            )
            deliver(preparation=mine, delivery=delivery, claim=mine.claim, now=clock())
    except UserError as refusal:
        give_up(preparation=mine, claim=mine.claim, reason=refusal.message)
    except MarketFault:
        # The next attempt begins when the claim has run out, until there are no more.
        log.exception("preparation %s failed", mine.pk)
    return True


def _claim(*, now: datetime) -> Preparation | None:
    with transaction.atomic():
        due = Preparation.objects.filter(
            status=PreparationStatus.WORKING, vendor__kind=VendorKind.AUTOMATIC, problem=""
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


def deliver(
    *, preparation: Preparation, delivery: Delivery, claim: str, now: datetime
) -> Preparation:
    """Take a vendor's delivery; an automatic vendor's is accepted if it passes all checks.

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
            if held.vendor.kind == VendorKind.AUTOMATIC:
                accept(preparation=held, now=now)
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
    held.rows_in = delivery.report.get("rows_in", held.source.rows + held.source.faulty)
    held.rows_out, held.rows_held_out = training.rows, held_out.rows if held_out else 0
    held.report, held.status, held.delivered_at = delivery.report, PreparationStatus.DELIVERED, now
    if delivery.changes is not None and delivery.changes.is_file():
        with delivery.changes.open("rb") as content:
            held.changes.save(f"{held.pk}.jsonl", File(content), save=False)
    held.save()


def accept(*, preparation: Preparation, now: datetime) -> Preparation:
    """Let the job train on what was delivered; twice changes nothing.

    Raises
    ------
    Conflict
        ``nothing_delivered``, or ``job_ended``.
    """
    with transaction.atomic():
        held = lock_preparation(preparation.pk)
        if held.status == PreparationStatus.ACCEPTED:
            return held
        if held.status != PreparationStatus.DELIVERED or held.prepared is None:
            raise Conflict("nothing_delivered", "There is no delivery to accept.")
        give_prepared_data(
            job=held.job,
            dataset=held.prepared,
            held_out=held.held_out,
            message=describe_result(held),
            now=now,
        )
        held.status, held.accepted_at = PreparationStatus.ACCEPTED, now
        held.save(update_fields=["status", "accepted_at"])
        enqueue("auction.preparations_conclude")
    return held


def describe_result(preparation: Preparation) -> str:
    """One sentence for the job's history."""
    beside = f", {preparation.rows_held_out:,} held out" if preparation.rows_held_out else ""
    return (
        f"{preparation.vendor.name} prepared the data: {preparation.rows_in:,} rows in, "
        f"{preparation.rows_out:,} out{beside}."
    )


def give_up(*, preparation: Preparation, claim: str, reason: str) -> None:
    """The vendor will not deliver: the auction finds the next one. Counts under the claim only."""
    with transaction.atomic():
        held = lock_preparation(preparation.pk)
        if held.claim == claim and held.status == PreparationStatus.WORKING:
            held.problem = reason[:_PROBLEM_CHARS]
            held.save(update_fields=["problem"])
            enqueue("auction.preparations_conclude")


def give_to_next_vendor(
    *, held: Preparation, offer: Sequence[Any], ready_slot: int, due_at: datetime, reason: str
) -> None:
    """Put another vendor in the place of one that did not deliver. Call while holding it."""
    vendor_id, price_micros, *_ = offer
    held.missed = [*held.missed, {"vendor": held.vendor_id, "reason": reason}]
    if vendor_id != held.vendor_id:
        held.claim, held.claimed_at, held.attempts, held.problem = "", None, 0, ""
    held.other_offers = [other for other in held.other_offers if other[0] != vendor_id]
    held.vendor_id, held.price_micros = vendor_id, price_micros
    held.ready_slot, held.due_at = ready_slot, due_at
    held.save()
    enqueue("vendors.prepare")


def close(*, held: Preparation, status: PreparationStatus, now: datetime, reason: str = "") -> None:
    """End a preparation whose data no job trains on. Call while holding it."""
    held.status, held.concluded_at, held.claim = status, now, ""
    if reason:
        held.missed = [*held.missed, {"vendor": held.vendor_id, "reason": reason}]
    held.save(update_fields=["status", "concluded_at", "claim", "missed"])
