"""What this app keeps of jobs and organisations: questions, for half an hour."""

from __future__ import annotations

from collections.abc import Iterator

from marketplace.accounts.erasure import KeptData, register_kept_data
from marketplace.accounts.models import Subject
from marketplace.questions.models import AskedQuestion


def _list_needs(**which: str) -> Iterator[str]:
    if AskedQuestion.objects.filter(**which).exists():
        yield "Questions to it are forgotten half an hour after their answers."


register_kept_data(
    KeptData(Subject.ADAPTER, list_needs=lambda job_id: _list_needs(job=job_id)),
    KeptData(Subject.JOB, list_needs=lambda job_id: _list_needs(job=job_id)),
    KeptData(Subject.ORGANISATION, list_needs=lambda owner: _list_needs(organisation=owner)),
)
