"""What belongs to the caller's organisation; what is somebody else's is not there."""

from __future__ import annotations

from django.db.models import QuerySet

from marketplace.accounts.models import Organisation
from marketplace.auction.bidding.measure import refuse_unknown_dataset
from marketplace.common.errors import NotFound
from marketplace.jobs.models import Dataset, Job, Upload


def list_datasets(organisation: Organisation) -> QuerySet[Dataset]:
    return Dataset.objects.filter(organisation=organisation).select_related("zone")


def get_dataset(
    organisation: Organisation, dataset_id: str, *, param: str = "dataset_id"
) -> Dataset:
    """One of the organisation's data sets.

    Raises
    ------
    NotFound
        ``unknown_dataset``.
    """
    found = list_datasets(organisation).filter(pk=_id(dataset_id)).first()
    if found is None:
        raise refuse_unknown_dataset(param)
    return found


def get_upload(organisation: Organisation, upload_id: str) -> Upload:
    """One of the organisation's uploads.

    Raises
    ------
    NotFound
        ``unknown_upload``.
    """
    uploads = Upload.objects.filter(organisation=organisation).select_related("zone")
    found = uploads.filter(pk=_id(upload_id)).first()
    if found is None:
        raise NotFound("unknown_upload", "You have no such upload; uploads are kept for a day.")
    return found


def list_jobs(organisation: Organisation) -> QuerySet[Job]:
    return Job.objects.filter(organisation=organisation).select_related("zone")


def get_job(organisation: Organisation, job_id: str) -> Job:
    """One of the organisation's jobs.

    Raises
    ------
    NotFound
        ``unknown_job``.
    """
    found = list_jobs(organisation).filter(pk=_id(job_id)).first()
    if found is None:
        raise NotFound("unknown_job", "You have no such job; GET /api/jobs lists yours.")
    return found


def _id(text: str) -> str:
    """PostgreSQL takes no NUL in a text, and no id has one."""
    return text.replace("\0", "")
