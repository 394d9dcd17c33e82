"""Giving vendors their work, taking it away, and ending it; ``working`` says how it is done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models.fields.files import FieldFile

from marketplace.common.durable.services import enqueue_work
from marketplace.jobs.models import Dataset
from marketplace.vendors.handover import build_work, start_work
from marketplace.vendors.models import Preparation, PreparationStatus, RowOpinion, WorkRow


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
    enqueue_work(*(build_work(held, now=now) for held in opened))


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
    is_another = vendor_id != held.vendor_id
    if is_another:
        _forget_work(held)
    held.other_offers = [other for other in held.other_offers if other[0] != vendor_id]
    held.vendor_id, held.price_micros = vendor_id, price_micros
    held.ready_slot, held.due_at = ready_slot, due_at
    if is_another:
        start_work(held, now=now)
    held.save()


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
    held.problem = ""
    held.handed_over_at = held.begun_at = held.submitted_at = None
    held.refusals = []
    held.comparison, held.objection = None, ""
    held.delivered_at = held.accept_by = None
    held.rows_out = held.rows_held_out = None
    held.report = {}


def close(*, held: Preparation, status: PreparationStatus, now: datetime, reason: str = "") -> None:
    """End a preparation whose data no job trains on. Call while holding it."""
    held.status, held.concluded_at = status, now
    if reason:
        held.missed = [*held.missed, {"vendor": held.vendor_id, "reason": reason}]
    held.save(update_fields=["status", "concluded_at", "missed"])
    _discard_delivery(held)
    forget_copies(held)
