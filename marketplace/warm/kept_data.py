"""What this app keeps of data sets and adapters: what their text is like."""

from __future__ import annotations

from datetime import datetime

from marketplace.accounts.erasure import KeptData, register_kept_data
from marketplace.accounts.models import Subject
from marketplace.warm.models import Consent, DatasetConsent, DatasetEmbedding, Donor, Probe


def _erase_dataset(dataset_id: str, *, now: datetime) -> None:
    """A donor's own vector stays with its adapter: no text can be read from it."""
    DatasetEmbedding.objects.filter(dataset=dataset_id).delete()
    DatasetConsent.objects.filter(dataset=dataset_id).delete()
    Probe.objects.filter(dataset=dataset_id).update(task=None)


def _erase_adapter(job_id: str, *, now: datetime) -> None:
    """The row stays, since royalties go by it; a deleted adapter is offered to nobody."""
    Donor.everything.filter(job=job_id).update(vector=b"", is_given=False)


def _erase_organisation(organisation_id: str, *, now: datetime) -> None:
    Consent.objects.filter(organisation=organisation_id).delete()


register_kept_data(
    KeptData(Subject.DATASET, erase=_erase_dataset),
    KeptData(Subject.ADAPTER, erase=_erase_adapter),
    KeptData(Subject.JOB, erase=_erase_adapter),
    KeptData(Subject.ORGANISATION, erase=_erase_organisation),
)
