"""What this app keeps of jobs: adapters in other forms, and pushes to hubs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from marketplace.accounts.erasure import KeptData, register_kept_data
from marketplace.accounts.models import Subject
from marketplace.exports.models import Export, HubPush, PushStatus


def _list_needs(job_id: str) -> Iterator[str]:
    if Export.objects.filter(job=job_id, state__in=Export.OPEN).exists():
        yield "A node makes another form of the adapter."
    if HubPush.objects.filter(job=job_id, status=PushStatus.WAITING).exists():
        yield "The adapter is being pushed to a hub."


def _list_files(job_id: str) -> Iterator[str]:
    for export in Export.objects.filter(job=job_id).exclude(file=""):
        yield export.file.name


def _erase(job_id: str, *, now: datetime) -> None:
    """What an export cost stays; a repository on a hub is its owner's to delete."""
    Export.objects.filter(job=job_id).update(file="", key=None, task=None)


def _erase_job(job_id: str, *, now: datetime) -> None:
    _erase(job_id, now=now)
    HubPush.objects.filter(job=job_id).delete()


register_kept_data(
    KeptData(Subject.ADAPTER, list_needs=_list_needs, list_files=_list_files, erase=_erase),
    KeptData(Subject.JOB, list_needs=_list_needs, list_files=_list_files, erase=_erase_job),
)
