"""What this app keeps of jobs and organisations: what requests said beside a bid."""

from __future__ import annotations

from datetime import datetime

from marketplace.accounts.erasure import KeptData, register_kept_data
from marketplace.accounts.models import Subject
from marketplace.api.models import FineTuningRequest, IdempotencyRecord
from marketplace.jobs.models import Job


def _erase_job(job_id: str, *, now: datetime) -> None:
    bids = Job.objects.filter(pk=job_id).values("bid_id")
    _strip(bid__in=bids)


def _erase_organisation(organisation_id: str, *, now: datetime) -> None:
    IdempotencyRecord.objects.filter(organisation=organisation_id).delete()
    _strip(organisation=organisation_id)


def _strip(**which: object) -> None:
    FineTuningRequest.objects.filter(**which).update(suffix="", metadata=None, integrations=[])


register_kept_data(
    KeptData(Subject.JOB, erase=_erase_job),
    KeptData(Subject.ORGANISATION, erase=_erase_organisation),
)
