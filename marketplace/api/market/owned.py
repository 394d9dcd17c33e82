"""What belongs to the caller's organisation; what is somebody else's is not there."""

from __future__ import annotations

from typing import TypeGuard

from django.db.models import QuerySet

from marketplace.accounts.models import Organisation
from marketplace.auction.bidding.measure import refuse_unknown_dataset
from marketplace.common.errors import Conflict, NotFound
from marketplace.jobs.models import Dataset, Job, Upload, UploadStatus
from marketplace.jobs.selectors import build_upload_error
from marketplace.jobs.services import wait_for_upload

#: How the ids of uploads begin.
UPLOAD = "up_"
#: Seconds that a request waits for the file that it names to be read.
READ_WITHIN_S = 20.0


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


def is_upload_id(given: str | None) -> TypeGuard[str]:
    """Whether an id names a file that was uploaded, instead of the data set that it becomes."""
    return given is not None and given.startswith(UPLOAD)


def find_dataset(organisation: Organisation, given: str, *, param: str = "dataset_id") -> Dataset:
    """One of the organisation's data sets, by its id or by that of its upload.

    Raises
    ------
    UserError
        ``unknown_dataset``, or those of ``await_dataset_id``.
    """
    if is_upload_id(given):
        given = await_dataset_id(organisation, given, param=param)
    return get_dataset(organisation, given, param=param)


def await_dataset_id(organisation: Organisation, upload_id: str, *, param: str) -> str:
    """The data set that an upload became, waiting up to ``READ_WITHIN_S`` while it is read.

    Raises
    ------
    NotFound
        ``unknown_upload``.
    Conflict
        ``upload_not_read``: it is read still.
    UserError
        What was wrong with the file.
    """
    upload = get_upload(organisation, upload_id)
    if upload.dataset_id is None:
        upload = wait_for_upload(upload, within_s=READ_WITHIN_S)
    if upload.status == UploadStatus.REFUSED:
        raise build_upload_error(upload)
    if upload.dataset_id is None:
        raise Conflict(
            "upload_not_read",
            f"The file is still being read. Send this request again in a few seconds; "
            f"GET /api/uploads/{upload.pk} says how far it is.",
            param=param,
            extra={"upload_id": upload.pk, "retry": True},
        )
    return upload.dataset_id


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
