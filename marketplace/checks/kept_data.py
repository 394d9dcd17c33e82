"""What this app keeps of data sets and jobs: copies of checkpoints, and errands that need data."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from django.db.models import Q

from marketplace.accounts.erasure import KeptData, register_kept_data
from marketplace.accounts.models import Subject
from marketplace.checks.models import FaultCheck, SpotCheck

_KINDS = (SpotCheck, FaultCheck)


def _list_dataset_needs(dataset_id: str) -> Iterator[str]:
    of_dataset = Q(job__dataset=dataset_id) | Q(job__validation_dataset=dataset_id)
    if any(kind.objects.filter(of_dataset, state__in=kind.OPEN).exists() for kind in _KINDS):
        yield "A node checks work that was done on it."


def _list_job_needs(job_id: str) -> Iterator[str]:
    if any(kind.objects.filter(job=job_id, state__in=kind.OPEN).exists() for kind in _KINDS):
        yield "A node checks its work."


def _list_files(job_id: str) -> Iterator[str]:
    for check in SpotCheck.objects.filter(job=job_id).exclude(file=""):
        yield check.file.name


def _erase(job_id: str, *, now: datetime) -> None:
    """What was found stays; what a node was asked holds the job as its owner wrote it."""
    for kind in _KINDS:
        kind.objects.filter(job=job_id).update(file="", task=None)


register_kept_data(
    KeptData(Subject.DATASET, list_needs=_list_dataset_needs),
    *(
        KeptData(subject, list_needs=_list_job_needs, list_files=_list_files, erase=_erase)
        for subject in (Subject.ADAPTER, Subject.JOB)
    ),
)
