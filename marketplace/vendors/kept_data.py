"""What this app keeps of data sets and jobs: vendors' copies, deliveries, plans and reports."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from marketplace.accounts.erasure import KeptData, register_kept_data
from marketplace.accounts.models import Subject, User
from marketplace.vendors.models import (
    DataPlan,
    DataReport,
    Dispute,
    Preparation,
    PreparationStatus,
    RowOpinion,
    Vendor,
    WorkRow,
)

_OPEN = (PreparationStatus.WORKING, PreparationStatus.DELIVERED, PreparationStatus.DISPUTED)


def _list_dataset_needs(dataset_id: str) -> Iterator[str]:
    of_dataset = Preparation.objects.filter(source=dataset_id)
    if of_dataset.filter(status__in=_OPEN).exists():
        yield "A vendor prepares it."
    if Dispute.objects.filter(preparation__in=of_dataset, decided_at=None).exists():
        yield "Its preparation is disputed."


def _list_job_needs(job_id: str) -> Iterator[str]:
    if Dispute.objects.filter(preparation__job=job_id, decided_at=None).exists():
        yield "The preparation of its data is disputed."


def _list_organisation_needs(organisation_id: str) -> Iterator[str]:
    if Preparation.objects.filter(vendor__organisation=organisation_id, status__in=_OPEN).exists():
        yield "It prepares data for others."


def _mark_organisation(organisation_id: str, *, asked_by: User | None, now: datetime) -> None:
    """Its vendors get no more work, and so no more data of others."""
    Vendor.objects.filter(organisation=organisation_id).update(is_suspended=True)


def _erase_organisation(organisation_id: str, *, now: datetime) -> None:
    for vendor in Vendor.objects.filter(organisation=organisation_id):
        vendor.name, vendor.endpoint, vendor.endpoint_secret = vendor.pk, "", ""
        vendor.save(update_fields=["name", "endpoint", "endpoint_secret"])


def _list_files(**which: str) -> Iterator[str]:
    for held in Preparation.objects.filter(**which):
        for file in (held.copy, held.submission, held.changes, held.origins):
            if file:
                yield file.name


def _erase_dataset(dataset_id: str, *, now: datetime) -> None:
    """What was done, by whom and for how much stays; prepared sets are data sets of their own."""
    DataReport.objects.filter(dataset=dataset_id).delete()
    DataPlan.objects.filter(dataset=dataset_id).delete()
    _forget(source=dataset_id)


def _erase_job(job_id: str, *, now: datetime) -> None:
    _forget(job=job_id)


def _forget(**which: str) -> None:
    found = Preparation.objects.filter(**which)
    WorkRow.objects.filter(preparation__in=found).delete()
    # The vendor's pay may still wait for them.
    texts = dict.fromkeys(RowOpinion.TEXTS, "")
    RowOpinion.objects.filter(preparation__in=found).update(**texts)
    Dispute.objects.filter(preparation__in=found).update(reason="")
    for held in found:
        wish = held.wish | {"instructions": "", "roles": {}, "gold": {}}
        Preparation.objects.filter(pk=held.pk).update(
            **dict.fromkeys(("copy", "submission", "changes", "origins"), ""),
            wish=wish,
            refusals=[],
            objection="",
            report={},
            comparison=None,
        )


register_kept_data(
    KeptData(
        Subject.DATASET,
        list_needs=_list_dataset_needs,
        list_files=lambda dataset_id: _list_files(source=dataset_id),
        erase=_erase_dataset,
    ),
    KeptData(
        Subject.JOB,
        list_needs=_list_job_needs,
        list_files=lambda job_id: _list_files(job=job_id),
        erase=_erase_job,
    ),
    KeptData(
        Subject.ORGANISATION,
        mark=_mark_organisation,
        list_needs=_list_organisation_needs,
        erase=_erase_organisation,
    ),
)
