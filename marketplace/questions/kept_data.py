"""What this app keeps of jobs and organisations: questions, for half an hour, served adapters."""

from __future__ import annotations

from collections.abc import Iterator

from marketplace.accounts.erasure import KeptData, register_kept_data
from marketplace.accounts.models import Subject
from marketplace.questions.models import AskedQuestion
from marketplace.questions.serving import unserve_adapter


def _list_needs(**which: str) -> Iterator[str]:
    if AskedQuestion.objects.filter(**which).exists():
        yield "Questions to it are forgotten half an hour after their answers."


register_kept_data(
    *(
        KeptData(
            subject,
            list_needs=lambda job_id: _list_needs(artifact__job=job_id),
            remove=unserve_adapter,
        )
        for subject in (Subject.ADAPTER, Subject.JOB)
    ),
    KeptData(Subject.ORGANISATION, list_needs=lambda owner: _list_needs(organisation=owner)),
)
