"""Scores: what a node says its result loses on the held-out rows, measured again elsewhere.

A target score and early stopping end a job at what its node says of rows that only nodes compute.
So the money of every job that ended there waits until another provider's node has measured its
result, and so does that of a share of all others. Where no such node is there, or none answers in
time, the job is settled as it was reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, QuerySet

from marketplace.checks.checkers import find_checker
from marketplace.checks.choosing import is_drawn
from marketplace.checks.judging import SCORE_GIVEN_UP_AFTER
from marketplace.checks.models import SpotCheck
from marketplace.jobs.models import Artifact, ErrandKind, ErrandState, Job, JobStatus


def exclude_unmeasured(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Jobs whose result is not being measured by another node."""
    return jobs.exclude(Exists(_list_scores().filter(job=OuterRef("pk"), state__in=SpotCheck.OPEN)))


def open_score_checks(jobs: Iterable[Job], *, now: datetime) -> list[Job]:
    """Have the results measured that are to be; the jobs whose money need not wait for it."""
    ended = list(jobs)
    wanted = {job.pk for job in ended if _is_wanted(job)}
    known = set(_list_scores().filter(job__in=wanted).values_list("job_id", flat=True))
    return [job for job in ended if job.pk not in wanted - known or not _open_check(job, now=now)]


def list_refuted_jobs() -> set[str]:
    """Ids of jobs whose result loses more than its node said."""
    return set(_list_refuted().values_list("job_id", flat=True))


def find_refuted_organisation(job: Job) -> str | None:
    """Whose node said of a job's result what two others, or a verified one, did not find."""
    refuted = _list_refuted().filter(job=job)
    return refuted.values_list("slice__node__provider__organisation_id", flat=True).first()


def _list_refuted() -> QuerySet[SpotCheck]:
    return _list_scores().filter(failed_at__isnull=False)


def _list_scores() -> QuerySet[SpotCheck]:
    return SpotCheck.objects.filter(claimed_score__isnull=False)


def _is_wanted(job: Job) -> bool:
    """Whether a job's result is measured: an early end always, of others the share drawn."""
    if not settings.SPOT_CHECK_SHARE:
        return False
    if job.status != JobStatus.SUCCEEDED or job.valid_loss is None:
        return False
    return job.stopped_early or is_drawn(f"{job.pk}\0score")


def _open_check(job: Job, *, now: datetime) -> bool:
    """Open the check of a job's result, once; false where no node could answer it."""
    artifact = Artifact.objects.filter(job=job).select_related("slice__node").first()
    if artifact is None:
        return False
    check = SpotCheck(
        kind=ErrandKind.CHECK,
        key=f"{job.pk}:score",
        zone=job.zone,
        verified_only=job.verified_only,
        job=job,
        slice=artifact.slice,
        from_step=job.step,
        claimed_score=job.valid_loss,
        created_at=now,
        gives_up_at=now + SCORE_GIVEN_UP_AFTER,
    )
    is_there = find_checker(check, now=now) is not None
    if not is_there:
        check.state, check.ended_at = ErrandState.FAILED, now
    try:
        with transaction.atomic():
            check.save(force_insert=True)
    except IntegrityError:
        # Another run was quicker.
        return True
    return is_there
