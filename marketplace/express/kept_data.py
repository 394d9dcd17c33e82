"""What this app keeps of data sets and jobs: requests and prompts of the bank."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from django.db.models import QuerySet

from marketplace.accounts.erasure import KeptData, register_kept_data
from marketplace.accounts.models import Subject
from marketplace.express.bank import withdraw_prompts
from marketplace.express.models import BankConsent, BankPrompt, ExpressRequest, RequestStatus
from marketplace.jobs.kept_data import DELETED_NAME
from marketplace.jobs.models import Job


def _list_dataset_needs(dataset_id: str) -> Iterator[str]:
    pending = ExpressRequest.objects.filter(dataset=dataset_id, status=RequestStatus.PENDING)
    if pending.exists():
        yield "An express request with it waits for its answer."


def _erase_adapter(job_id: str, *, now: datetime) -> None:
    withdraw_prompts(BankPrompt.objects.filter(job_id=job_id, withdrawn_at=None), now=now)


def _erase_job(job_id: str, *, now: datetime) -> None:
    _erase_adapter(job_id, now=now)
    bids = Job.objects.filter(pk=job_id).values("bid_id")
    _strip(ExpressRequest.objects.filter(bid_id__in=bids))


def _erase_organisation(organisation_id: str, *, now: datetime) -> None:
    _strip(ExpressRequest.objects.filter(organisation=organisation_id))
    BankConsent.objects.filter(organisation=organisation_id).delete()


def _strip(requests: QuerySet[ExpressRequest]) -> None:
    for request in requests:
        request.name, request.adapter = DELETED_NAME, request.adapter | {"init_text": ""}
        request.save(update_fields=["name", "adapter"])


register_kept_data(
    KeptData(Subject.DATASET, list_needs=_list_dataset_needs),
    KeptData(Subject.ADAPTER, erase=_erase_adapter),
    KeptData(Subject.JOB, erase=_erase_job),
    KeptData(Subject.ORGANISATION, erase=_erase_organisation),
)
