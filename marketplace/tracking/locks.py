"""The only row locks of this app."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Exists, OuterRef

from marketplace.jobs.models import Job
from marketplace.tracking.models import TrackedRun


def lock_due_run(*, now: datetime) -> TrackedRun | None:
    """The next run that is due, has a job, and that no other worker has taken."""
    due = TrackedRun.objects.select_for_update(of=("self",), skip_locked=True)
    due = due.filter(Exists(Job.objects.filter(bid_id=OuterRef("bid_id"))))
    return due.filter(ended_at=None, due_at__lte=now).order_by("due_at", "pk").first()
