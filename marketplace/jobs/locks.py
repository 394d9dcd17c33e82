"""Every row lock of this app: jobs by primary key, then what they have. Call in a transaction.

Data sets and uploads are locked one at a time, and with nothing else. Errands are locked one at a
time, before jobs, nodes and wallets.
"""

from __future__ import annotations

from collections.abc import Iterable

from marketplace.jobs.models import (
    Artifact,
    Dataset,
    Errand,
    Job,
    PartedUpload,
    Slice,
    SliceStatus,
    Upload,
)


def lock_job(job_id: str) -> Job:
    return (
        Job.objects.select_for_update(of=("self",)).select_related("zone", "dataset").get(pk=job_id)
    )


def lock_artifact(job_id: str) -> None:
    """Lock a job's adapter, if it has one. Call while holding the job."""
    list(Artifact.everything.select_for_update(of=("self",)).filter(job=job_id))


def lock_dataset(dataset_id: str) -> None:
    """Lock a data set: no job begins with it meanwhile."""
    list(Dataset.everything.select_for_update(of=("self",)).filter(pk=dataset_id))


def lock_free_jobs(job_ids: Iterable[str]) -> dict[str, Job]:
    """Lock those of the jobs that nobody holds, without a wait, in the order of their ids.

    Whoever has several jobs waits for none: the lane may hold one and want another.
    """
    free = (
        Job.objects.select_for_update(of=("self",), skip_locked=True)
        .select_related("zone", "dataset")
        .filter(pk__in=list(job_ids))
        .order_by("pk")
    )
    return {job.pk: job for job in free}


def lock_slice(lease_token: str) -> tuple[Job, Slice] | None:
    """The slice of a lease and its job, both locked, in any state."""
    job_id = Slice.objects.filter(lease_token=lease_token).values_list("job_id", flat=True).first()
    if job_id is None:
        return None
    job = lock_job(job_id)
    held = (
        Slice.objects.select_for_update(of=("self",))
        .select_related("node")
        .get(lease_token=lease_token)
    )
    return job, held


def lock_open_slice(job: Job) -> Slice | None:
    """The job's current slice. Call while holding the job."""
    return (
        Slice.objects.select_for_update(of=("self",))
        .select_related("node")
        .filter(job=job, status=SliceStatus.OPEN)
        .first()
    )


def lock_upload(upload_id: str) -> Upload | None:
    """Lock an upload, if it is still there."""
    found = Upload.objects.select_for_update(of=("self",)).select_related("zone")
    return found.filter(pk=upload_id).first()


def lock_parted_upload(upload_id: str) -> PartedUpload:
    found = PartedUpload.objects.select_for_update(of=("self",))
    return found.select_related("organisation", "created_by", "whole").get(pk=upload_id)


def lock_errand(**wanted: object) -> Errand | None:
    return Errand.objects.select_for_update(of=("self",)).filter(**wanted).first()
