"""What this app keeps of data sets, jobs and their owners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from marketplace.accounts.erasure import KeptData, register_kept_data
from marketplace.accounts.models import Subject, User
from marketplace.accounts.own_data import read_file, write_rows
from marketplace.jobs.locks import lock_job
from marketplace.jobs.loss_curves import remove_loss_curves, write_loss_curve
from marketplace.jobs.models import (
    Artifact,
    CandidatePrompts,
    Checkpoint,
    Dataset,
    HeldOutCheck,
    Job,
    LossCurve,
    MetricPoint,
    PartedUpload,
    Slice,
    Upload,
    UploadPart,
)
from marketplace.jobs.services import delete_all_of
from marketplace.jobs.services.readings import delete_file
from marketplace.jobs.terms import strip_texts
from marketplace.webhooks.outbox import forget_messages

#: What the texts of deleted things become.
DELETED_NAME = "Deleted"
_RUNS = Q(settled_at=None)


def _mark_dataset(dataset_id: str, *, asked_by: User | None, now: datetime) -> None:
    Dataset.everything.filter(pk=dataset_id, deleted_at=None).update(deleted_at=now)


def _mark_adapter(job_id: str, *, asked_by: User | None, now: datetime) -> None:
    Artifact.everything.filter(job=job_id, deleted_at=None).update(deleted_at=now)


def _mark_job(job_id: str, *, asked_by: User | None, now: datetime) -> None:
    Job.objects.filter(pk=job_id, deleted_at=None).update(deleted_at=now)
    _mark_adapter(job_id, asked_by=asked_by, now=now)


def _mark_all(organisation_id: str, *, asked_by: User | None, now: datetime) -> None:
    """Uploads that nobody has read yet go at once: read later, they would stay as data sets."""
    for upload in Upload.objects.filter(organisation=organisation_id):
        transaction.on_commit(partial(delete_file, upload.file.name), robust=True)
    Upload.objects.filter(organisation=organisation_id).delete()
    delete_all_of(organisation_id=organisation_id, asked_by=asked_by, now=now)


def _list_dataset_needs(dataset_id: str) -> Iterator[str]:
    """A job that is not over, or whose money is not settled, needs its data."""
    of_dataset = Q(dataset=dataset_id) | Q(validation_dataset=dataset_id)
    for job_id in Job.objects.filter(of_dataset, _RUNS).values_list("pk", flat=True)[:5]:
        yield f"Job {job_id} needs it."


def _list_adapter_needs(job_id: str) -> Iterator[str]:
    """So do a job itself and those that begin with one of its adapters."""
    if Job.objects.filter(_RUNS, pk=job_id).exists():
        yield "The job is not settled."
    artifacts = list(Artifact.everything.filter(job=job_id).values_list("pk", flat=True))
    if Job.objects.filter(_RUNS, terms__start__artifact_id__in=artifacts).exists():
        yield "A job that has begun with the adapter needs it."
    if Job.objects.filter(_RUNS, resumed_job_id=job_id).exists():
        yield "A job that goes on from its checkpoint needs it."


def _list_organisation_needs(organisation_id: str) -> Iterator[str]:
    jobs = Job.objects.filter(_RUNS, organisation=organisation_id)
    for job_id in jobs.values_list("pk", flat=True)[:5]:
        yield f"Job {job_id} is not over."


def _list_dataset_files(dataset_id: str) -> Iterator[str]:
    dataset = Dataset.everything.get(pk=dataset_id)
    yield dataset.file.name
    for upload in Upload.objects.filter(dataset=dataset).exclude(file=""):
        yield upload.file.name


def _list_adapter_files(job_id: str) -> Iterator[str]:
    for model in (Artifact.everything, Checkpoint.objects, CandidatePrompts.objects):
        for row in model.filter(job=job_id):
            yield row.file.name


def _list_organisation_files(organisation_id: str) -> Iterator[str]:
    for upload in Upload.objects.filter(organisation=organisation_id).exclude(file=""):
        yield upload.file.name
    for part in UploadPart.objects.filter(upload__organisation=organisation_id):
        yield part.file.name


def _erase_dataset(dataset_id: str, *, now: datetime) -> None:
    """Counts and the hash stay: work and its pay are checked against them."""
    Dataset.everything.filter(pk=dataset_id).update(
        file="",
        name=DELETED_NAME,
        errors=[],
        faulty_lines=[],
        long_lines=[],
        ignored_keys=[],
        roles={},
    )
    Upload.objects.filter(dataset=dataset_id).delete()
    HeldOutCheck.objects.filter(Q(dataset=dataset_id) | Q(held_out=dataset_id)).delete()


def _erase_adapter(job_id: str, *, now: datetime) -> None:
    Artifact.everything.filter(job=job_id).update(file="")
    Checkpoint.objects.filter(job=job_id).update(file="")
    CandidatePrompts.objects.filter(job=job_id).delete()


def _list_job_files(job_id: str) -> Iterator[str]:
    yield from _list_adapter_files(job_id)
    yield from LossCurve.objects.filter(job=job_id).values_list("file", flat=True)


def _erase_job(job_id: str, *, now: datetime) -> None:
    """Plan, price and events stay, and of a slice what was done; not what it wrote or measured."""
    _erase_adapter(job_id, now=now)
    job = lock_job(job_id)
    job.name, job.terms = DELETED_NAME, strip_texts(job.terms)
    job.save(update_fields=["name", "terms"])
    for held in Slice.objects.filter(job=job_id, result__isnull=False):
        kept = held.result | {"samples": [], "outliers": []}
        Slice.objects.filter(pk=held.pk).update(result=kept)
    MetricPoint.objects.filter(job=job_id).delete()
    LossCurve.objects.filter(job=job_id).delete()
    forget_messages(organisation_id=job.organisation_id, about=job_id)


def _erase_organisation(organisation_id: str, *, now: datetime) -> None:
    PartedUpload.objects.filter(organisation=organisation_id).delete()
    Upload.objects.filter(organisation=organisation_id).delete()


def _list_own(organisation_id: str) -> Iterable[tuple[str, Callable[[], Iterable[bytes]]]]:
    sets = Dataset.objects.filter(organisation=organisation_id)
    jobs = Job.objects.filter(organisation=organisation_id)
    yield (
        "datasets.jsonl",
        write_rows(sets, "name", "format", "sha256", "bytes", "rows", "tokens", "created_at"),
    )
    for dataset in sets.order_by("pk"):
        yield f"datasets/{dataset.pk}", read_file(lambda file=dataset.file: file.open("rb"))
    columns = ("name", "status", "terms", "price_micros", "valid_loss", "created_at", "finished_at")
    yield "jobs.jsonl", write_rows(jobs, "bid_id", "dataset_id", *columns)
    for artifact in Artifact.objects.filter(job__in=jobs).order_by("pk"):
        path = f"adapters/{artifact.job_id}.zip"
        yield path, read_file(lambda file=artifact.file: file.open("rb"))
    measured = Q(losscurve__isnull=False) | Exists(MetricPoint.objects.filter(job=OuterRef("pk")))
    for job_id in jobs.filter(measured).order_by("pk").values_list("pk", flat=True):
        yield f"measurements/{job_id}.jsonl", partial(write_loss_curve, job_id)


register_kept_data(
    KeptData(
        Subject.DATASET,
        mark=_mark_dataset,
        list_needs=_list_dataset_needs,
        list_files=_list_dataset_files,
        erase=_erase_dataset,
    ),
    KeptData(
        Subject.ADAPTER,
        mark=_mark_adapter,
        list_needs=_list_adapter_needs,
        list_files=_list_adapter_files,
        erase=_erase_adapter,
    ),
    KeptData(
        Subject.JOB,
        mark=_mark_job,
        list_needs=_list_adapter_needs,
        list_files=_list_job_files,
        remove=remove_loss_curves,
        erase=_erase_job,
    ),
    KeptData(
        Subject.ORGANISATION,
        mark=_mark_all,
        list_needs=_list_organisation_needs,
        list_files=_list_organisation_files,
        erase=_erase_organisation,
        list_own=_list_own,
    ),
)
