"""Deleting data sets and results: marked here, erased later (``accounts.erasure``)."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.core.files.storage import default_storage
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, Value
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce

from marketplace.accounts.erasure import ask_deletion
from marketplace.accounts.models import Deletion, Organisation, Subject, User
from marketplace.common.errors import Conflict, NotFound
from marketplace.fleet.models import Zone
from marketplace.jobs.locks import lock_artifact, lock_dataset, lock_job
from marketplace.jobs.models import Artifact, Dataset, Job, JobStatus

#: How often the use of an adapter is noted.
USE_NOTED_EVERY = timedelta(hours=1)
#: After its last use, of the adapter of a checkpoint that is gone.
CHECKPOINT_MODELS_KEPT_FOR = timedelta(days=1)
#: Things whose time of retention is over that one run marks; the next run takes the rest.
BATCH_LIMIT = 500


def delete_dataset(*, dataset: Dataset, asked_by: User | None, now: datetime) -> Deletion:
    """Delete a data set: nothing new uses it, and its content goes once no job needs it."""
    with transaction.atomic():
        return _ask(Subject.DATASET, dataset.pk, dataset.organisation_id, asked_by, now)


def delete_adapter(*, job: Job, asked_by: User | None, now: datetime) -> Deletion:
    """Delete a job's adapter in every form, and its checkpoints.

    Raises
    ------
    NotFound
        ``no_adapter``: there is none, or it is deleted already.
    Conflict
        ``job_active``: it must end first.
    """
    with transaction.atomic():
        if lock_job(job.pk).is_active:
            raise Conflict("job_active", "The job is not over. Cancel it first.")
        if not Artifact.objects.filter(job=job).exists():
            raise NotFound("no_adapter", f"The job is {job.status}; it has no adapter to delete.")
        return _ask(Subject.ADAPTER, job.pk, job.organisation_id, asked_by, now)


def delete_job(*, job: Job, asked_by: User | None, now: datetime) -> Deletion:
    """Delete what a job made and what was written of it; its accounts stay.

    Raises
    ------
    Conflict
        ``job_active``: it must end first.
    """
    with transaction.atomic():
        if lock_job(job.pk).is_active:
            raise Conflict("job_active", "The job is not over. Cancel it first.")
        return _ask(Subject.JOB, job.pk, job.organisation_id, asked_by, now)


def delete_all_of(*, organisation_id: str, asked_by: User | None, now: datetime) -> None:
    """Delete all data sets and jobs of an organisation. Call in a transaction."""
    for dataset in Dataset.everything.filter(organisation=organisation_id, deleted_at=None):
        delete_dataset(dataset=dataset, asked_by=asked_by, now=now)
    for job in Job.objects.filter(organisation=organisation_id).exclude(status__in=Job.ACTIVE):
        delete_job(job=job, asked_by=asked_by, now=now)


def delete_unretained(*, now: datetime) -> int:
    """Delete what nobody has used for the days that its organisation or zone retains; how many.

    A data set is used by jobs until they end, and a result by ``note_adapter_use``. The shorter of
    two times counts. Each is looked at again under its lock: it may have been used meanwhile.
    """
    count = 0
    for of, model in (("organisation", Organisation), ("zone", Zone)):
        limits = model.objects.filter(retain_days__isnull=False)
        for pk, days in limits.values_list("pk", "retain_days"):
            # The days again: under the lock they are still those.
            retained = {of: pk, f"{of}__retain_days": days}
            before = now - timedelta(days=days)
            count += _delete_old_jobs(retained, before=before, now=now)
            count += _delete_old_datasets(retained, before=before, now=now)
    return count


def _delete_old_jobs(retained: dict[str, Any], *, before: datetime, now: datetime) -> int:
    ended = Job.objects.filter(
        **retained, deleted_at=None, settled_at__isnull=False, finished_at__lt=before
    )
    used = Artifact.everything.filter(job=OuterRef("pk"), used_at__gte=before)
    old, count = ended.exclude(Exists(used)), 0
    for job in list(old[:BATCH_LIMIT]):
        with transaction.atomic():
            lock_job(job.pk)
            lock_artifact(job.pk)
            if old.filter(pk=job.pk).exists():
                delete_job(job=job, asked_by=None, now=now)
                count += 1
    return count


def _delete_old_datasets(retained: dict[str, Any], *, before: datetime, now: datetime) -> int:
    sets = Dataset.everything.filter(
        **retained, deleted_at=None, is_withheld=False, created_at__lt=before
    )
    with_it = Job.objects.filter(Q(dataset=OuterRef("pk")) | Q(validation_dataset=OuterRef("pk")))
    in_use = with_it.filter(Q(status__in=Job.ACTIVE) | Q(finished_at__gte=before))
    old, count = sets.exclude(Exists(in_use)), 0
    for dataset in list(old[:BATCH_LIMIT]):
        with transaction.atomic():
            lock_dataset(dataset.pk)
            if old.filter(pk=dataset.pk).exists():
                delete_dataset(dataset=dataset, asked_by=None, now=now)
                count += 1
    return count


def delete_checkpoint_models(*, now: datetime) -> int:
    """Delete adapters of checkpoints that are gone and that nobody needs any more; how many.

    A checkpoint goes as newer ones come, and its adapter, if it was used as a model, a day after
    the last use of the job's models: questions, exports and bids under way are over by then. It
    stays while a job that began with it runs or may be resumed, and while a model server has a
    copy.
    """
    before, count = now - CHECKPOINT_MODELS_KEPT_FOR, 0
    paused = Q(status=JobStatus.PAUSED, deleted_at=None)
    needing = Job.objects.filter(Q(settled_at=None) | paused)
    begun = needing.alias(begun_with=KT("terms__start__artifact_id"))
    begun = begun.filter(begun_with=OuterRef("pk"))
    gone = (
        Artifact.everything.exclude(Q(checkpoint=None) | Q(file=""))
        .filter(Q(checkpoint__file="") | Q(deleted_at__isnull=False), served_at=None)
        .filter(Q(used_at=None) | Q(used_at__lt=before), ~Exists(begun), created_at__lt=before)
    )
    for artifact in list(gone.order_by("created_at")[:BATCH_LIMIT]):
        with transaction.atomic():
            lock_artifact(artifact.job_id)
            if gone.filter(pk=artifact.pk).exists():
                removed = partial(default_storage.delete, artifact.file.name)
                transaction.on_commit(removed, robust=True)
                Artifact.everything.filter(pk=artifact.pk).update(
                    file="", deleted_at=Coalesce("deleted_at", Value(now))
                )
                count += 1
    return count


def note_adapter_use(*, job_ids: Collection[str], now: datetime) -> None:
    """Note that the adapters of jobs are used now: their time of retention begins again."""
    if job_ids:
        noted = Q(used_at__gt=now - USE_NOTED_EVERY)
        present = Artifact.everything.filter(job__in=job_ids, deleted_at=None)
        present.exclude(noted).update(used_at=now)


def _ask(
    subject: Subject, subject_id: str, organisation_id: str, asked_by: User | None, now: datetime
) -> Deletion:
    return ask_deletion(
        subject=subject,
        subject_id=subject_id,
        organisation_id=organisation_id,
        asked_by=asked_by,
        now=now,
    )
