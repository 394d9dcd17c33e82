"""Which steps are checked: a random few, by a draw that no node can predict."""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime, timedelta

from django.conf import settings
from django.core.files.base import File
from django.db import transaction
from django.db.models import Q

from marketplace.checks.models import SpotCheck
from marketplace.jobs.models import Checkpoint, ErrandKind, Job, Slice, SliceStatus
from marketplace.jobs.selectors import list_job_checkpoints
from workers.protocol.job_spec import AdapterKind

#: A checkpoint that is older was drawn before, or its steps are over.
RECENT = timedelta(minutes=10)


def choose_checks(*, now: datetime) -> int:
    """Open checks of beginnings and checkpoints that the draw falls on; how many.

    Jobs whose beginning another node cannot repeat (a looked-up prompt, another's adapter) are
    left out.
    """
    opened = 0
    running = Slice.objects.filter(status=SliceStatus.OPEN, job__status__in=Job.ACTIVE)
    fresh = running.filter(opened_at__gt=now - RECENT, checks=None)
    first = fresh.filter(Q(first_step=0) | Q(job__terms__resumes__step__gt=0))
    for held in first.select_related("job", "node").order_by("pk"):
        resumes = held.job.terms.resumes
        if resumes is None or not resumes.step:
            opened += _open_check(held, None, now=now)
        elif held.first_step == resumes.step:
            checkpoint = list_job_checkpoints(held.job).filter(step=resumes.step).last()
            opened += checkpoint is not None and _open_check(held, checkpoint, now=now)
    stored = Checkpoint.objects.filter(
        slice__in=running, created_at__gt=now - RECENT, step__gt=0
    ).exclude(file="")
    for checkpoint in stored.select_related("slice__job", "slice__node").order_by("pk"):
        opened += _open_check(checkpoint.slice, checkpoint, now=now)
    return opened


def is_drawn(name: str, *, share: float | None = None) -> bool:
    """Whether the market's secret draw falls on it; the same name is drawn alike every time.

    ``share`` is ``SPOT_CHECK_SHARE`` unless said otherwise.
    """
    chance: float = settings.SPOT_CHECK_SHARE if share is None else share
    digest = hmac.new(settings.SECRET_KEY.encode(), f"check\0{name}".encode(), hashlib.sha256)
    return int.from_bytes(digest.digest()[:8]) < chance * 2**64


def _open_check(held: Slice, checkpoint: Checkpoint | None, *, now: datetime) -> bool:
    job = held.job
    repeatable = job.start is None and job.terms.adapter.kind is not AdapterKind.SOFT_PROMPT
    step = 0 if checkpoint is None else checkpoint.step
    if not repeatable or not is_drawn(f"{held.pk}\0{step}"):
        return False
    if SpotCheck.objects.filter(slice=held, from_step=step).exists():
        return False
    check = SpotCheck(
        kind=ErrandKind.CHECK,
        key=f"{held.pk}:{step}",
        zone_id=job.zone_id,
        verified_only=job.verified_only,
        job=job,
        slice=held,
        from_step=step,
        created_at=now,
    )
    with transaction.atomic():
        if checkpoint is not None:
            # A copy: the job drops its own once it has newer ones.
            try:
                with checkpoint.file.open("rb") as content:
                    check.file.save("", File(content), save=False)
            except FileNotFoundError:
                return False
            check.sha256, check.bytes = checkpoint.sha256, checkpoint.bytes
        check.save(force_insert=True)
    return True
