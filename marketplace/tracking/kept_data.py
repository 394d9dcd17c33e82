"""What this app keeps of an organisation: its key, and where its runs are measured."""

from __future__ import annotations

from datetime import datetime

from marketplace.accounts.erasure import KeptData, register_kept_data
from marketplace.accounts.models import Subject
from marketplace.tracking.models import TrackedRun, TrackingKey


def _erase(organisation_id: str, *, now: datetime) -> None:
    TrackingKey.objects.filter(organisation=organisation_id).delete()
    TrackedRun.objects.filter(organisation=organisation_id).delete()


register_kept_data(KeptData(Subject.ORGANISATION, erase=_erase))
