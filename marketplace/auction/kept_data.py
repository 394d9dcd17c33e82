"""What this app keeps of data sets, jobs and their owners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from django.db.models import Q

from marketplace.accounts.erasure import KeptData, register_kept_data
from marketplace.accounts.models import Subject
from marketplace.accounts.own_data import write_rows
from marketplace.auction.models import Bid, Bundle, Reservation, ResultDispute
from marketplace.auction.selectors import annotate_refunds
from marketplace.jobs.kept_data import DELETED_NAME
from marketplace.jobs.models import Job
from marketplace.jobs.terms import strip_data, strip_texts
from marketplace.payments.kept_data import forget_card_terms


def _list_dataset_needs(dataset_id: str) -> Iterator[str]:
    named = Q(dataset=dataset_id) | Q(validation_dataset=dataset_id)
    if Bid.objects.filter(named, status__in=Bid.OPEN).exists():
        yield "A bid with it waits for its answer."
    disputed = ResultDispute.objects.filter(decided_at=None)
    if disputed.filter(bid__in=Bid.objects.filter(named)).exists():
        yield "A result that was trained on it is disputed."


def _list_job_needs(job_id: str) -> Iterator[str]:
    bids = Job.objects.filter(pk=job_id).values("bid_id")
    if ResultDispute.objects.filter(decided_at=None, bid__in=bids).exists():
        yield "Its result is disputed."
    begun = Q(terms__start__job_id=job_id) | Q(resumed_job_id=job_id)
    if Bid.objects.filter(begun, status__in=Bid.OPEN).exists():
        yield "A bid for a job that begins with what it made waits for its answer."


def _list_organisation_needs(organisation_id: str) -> Iterator[str]:
    if Bid.objects.filter(organisation=organisation_id, status__in=Bid.OPEN).exists():
        yield "A bid waits for its answer."
    if Bid.objects.filter(organisation=organisation_id, rent_due_micros__isnull=False).exists():
        yield "A part of the price of a job that it cancelled may go back to it yet."
    cells = Reservation.objects.filter(node__provider__organisation=organisation_id)
    if cells.filter(bid__rent_due_micros__isnull=False).exists():
        yield "It may be paid for cells that were given back too late to be sold again."


def _erase_dataset(dataset_id: str, *, now: datetime) -> None:
    """Rows of it are named where known answers to them were given, to vendors' work too."""
    for bid in Bid.objects.filter(dataset=dataset_id).exclude(terms=None):
        _strip_terms(bid)
        for job in Job.objects.filter(bid_id=bid.pk):
            _strip_terms(job)


def _strip_terms(row: Bid | Job) -> None:
    if row.terms is not None:
        row.terms = strip_data(row.terms)
        row.save(update_fields=["terms"])


def _erase_job(job_id: str, *, now: datetime) -> None:
    """What was bid, decided and paid stays, as does everything that the log says."""
    _erase_bids(Bid.objects.filter(pk__in=Job.objects.filter(pk=job_id).values("bid_id")))


def _erase_organisation(organisation_id: str, *, now: datetime) -> None:
    """Bids that won no job as well."""
    _erase_bids(Bid.objects.filter(organisation=organisation_id).exclude(name=DELETED_NAME))


def _erase_bids(bids: Iterable[Bid]) -> None:
    for bid in bids:
        bid.name = DELETED_NAME
        bid.terms = None if bid.terms is None else strip_texts(bid.terms)
        bid.save(update_fields=["name", "terms"])
        if bid.bundle_id is not None:
            Bundle.objects.filter(pk=bid.bundle_id).update(name=DELETED_NAME)
        ResultDispute.objects.filter(bid=bid).update(reason="")
        forget_card_terms(references=[bid.hold_reference])


def _list_own(organisation_id: str) -> Iterable[tuple[str, Callable[[], Iterable[bytes]]]]:
    bids = annotate_refunds(Bid.objects.filter(organisation=organisation_id))
    columns = ("name", "status", "price_micros", "payment_micros", "refund_micros", "terms")
    yield "bids.jsonl", write_rows(bids, *columns, "created_at", "decided_at", "receipt")


register_kept_data(
    KeptData(Subject.DATASET, list_needs=_list_dataset_needs, erase=_erase_dataset),
    KeptData(Subject.ADAPTER, list_needs=_list_job_needs),
    KeptData(Subject.JOB, list_needs=_list_job_needs, erase=_erase_job),
    KeptData(
        Subject.ORGANISATION,
        list_needs=_list_organisation_needs,
        erase=_erase_organisation,
        list_own=_list_own,
    ),
)
