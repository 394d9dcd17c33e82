"""Scores: what a node says its result loses on the held-out rows, measured again elsewhere.

The money of a job waits until another provider's node has measured its result

- where it ended early: a target score and early stopping end it at what its node says of rows that
  only nodes compute;
- where its node is new: of the first results of each, every one is measured;
- where it cost much;
- and of the others where a draw falls on it, some results of each node within the time in which
  its pay can still be taken back.

Where no such node is there the house rents a machine, if it may in that zone, up to a daily limit
of results (``RENTED_A_DAY``). Where it may not, or none answers in time, the job is settled as it
was reported. Nodes that the operator runs are believed but for early ends. The owner of any result
may ask for it to be measured (``auction.result_disputes``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Exists, F, OuterRef, QuerySet

from marketplace.accounts.selectors import is_run_by_operator
from marketplace.checks.checkers import find_checker
from marketplace.checks.models import SpotCheck
from marketplace.checks.sampling import is_drawn
from marketplace.checks.verdicts import SCORE_GIVEN_UP_AFTER
from marketplace.fleet.models import Node
from marketplace.jobs.models import Artifact, ErrandKind, ErrandState, Job, JobStatus

#: Results of a node that are measured before only a share of them is.
FIRST_RESULTS = 3
#: Of a node's results within the delay of its pay, how many are measured on the mean. However often
#: a node lies, it then loses more pay than the work that it spares (tests/properties).
MEASURED_A_DELAY = 6
#: Results of jobs that cost more are always measured, in micro-dollars.
MEASURED_ABOVE_MICROS = 50_000_000
#: Within which a machine that the house rents for a result has booted and measured it.
RENTED_WITHIN = timedelta(minutes=20)
#: Results of a zone for which it does so within a day.
RENTED_A_DAY = 24

#: The least that a job costs whose result the house rents a machine for, in micro-dollars: what a
#: machine of $3 an hour costs meanwhile. Owners can bring such checks about.
RENTED_FROM_MICROS = 1_000_000

#: Says whether the house may rent a machine for a check.
Renter = Callable[[SpotCheck], bool]
_renters: list[Renter] = []


def register_renter(renter: Renter) -> None:
    """Make known who rents machines; an app above this one calls this when it is loaded."""
    _renters.append(renter)


def exclude_unmeasured(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Jobs whose result is not being measured by another node."""
    return jobs.exclude(Exists(_list_scores().filter(job=OuterRef("pk"), state__in=SpotCheck.OPEN)))


def open_score_checks(jobs: Iterable[Job], *, now: datetime) -> list[Job]:
    """Have the results measured that are to be; the jobs whose money need not wait for it."""
    ended = list(jobs)
    wanted = {job.pk for job in ended if _is_wanted(job, now=now)}
    known = set(_list_scores().filter(job__in=wanted).values_list("job_id", flat=True))
    return [
        job
        for job in ended
        if job.pk not in wanted - known or not _open_check(job, key=f"{job.pk}:score", now=now)
    ]


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


def _is_wanted(job: Job, *, now: datetime) -> bool:
    if not settings.SPOT_CHECK_SHARE or not can_be_measured(job):
        return False
    if job.stopped_early:
        return True
    artifact = Artifact.objects.filter(job=job).select_related("slice__node__provider").first()
    if artifact is None:
        return False
    node = artifact.slice.node
    if is_run_by_operator(organisation_id=node.provider.organisation.pk):
        return False
    if job.price_micros > MEASURED_ABOVE_MICROS:
        return True
    share = max(settings.SPOT_CHECK_SHARE, compute_share(node, now=now))
    return is_drawn(f"{job.pk}\0score", share=share)


def can_be_measured(job: Job) -> bool:
    """Whether a job has a result and a loss that another node could find again."""
    return job.status == JobStatus.SUCCEEDED and job.valid_loss is not None


def compute_share(node: Node, *, now: datetime) -> float:
    """Of a node's results, the share that is measured; 1 while it is new."""
    agreed = _list_scores().filter(slice__node=node, agrees=True)
    if agreed[:FIRST_RESULTS].count() < FIRST_RESULTS:
        return 1.0
    since = now - timedelta(days=settings.PAYOUT_DELAY_DAYS)
    return share_of(Artifact.objects.filter(slice__node=node, created_at__gt=since).count())


def share_of(results: int) -> float:
    """Find the share of results that can be measured within the delay of their pay."""
    return min(1.0, MEASURED_A_DELAY / max(1, results))


def find_score_check(job: Job) -> SpotCheck | None:
    """The last opinion about a job's result."""
    return _list_scores().filter(job=job).order_by("-created_at", "-pk").first()


def open_disputed_score(job: Job, *, now: datetime) -> bool:
    """Have a result measured because its owner asks for it; false where no node could do it now."""
    return _open_check(job, key=f"{job.pk}:disputed", now=now)


def _open_check(job: Job, *, key: str, now: datetime) -> bool:
    """Open a check of a job's result, once for each key; false where no node could answer it."""
    artifact = Artifact.objects.filter(job=job).select_related("slice__node").first()
    if artifact is None:
        return False
    check = SpotCheck(
        kind=ErrandKind.CHECK,
        key=key,
        zone=job.zone,
        verified_only=job.verified_only,
        job=job,
        slice=artifact.slice,
        from_step=job.step,
        claimed_score=job.valid_loss,
        created_at=now,
        gives_up_at=now + SCORE_GIVEN_UP_AFTER,
    )
    if find_checker(check, now=now) is None:
        if _may_rent(check, now=now):
            check.gives_up_at = now + RENTED_WITHIN
        else:
            check.state, check.ended_at = ErrandState.FAILED, now
    try:
        with transaction.atomic():
            check.save(force_insert=True)
    except IntegrityError:
        # Another run was quicker.
        return True
    return check.state == ErrandState.WAITING


def _may_rent(check: SpotCheck, *, now: datetime) -> bool:
    """Whether the house may rent a machine for a check that no node could answer."""
    lately = _list_scores().filter(zone=check.zone, created_at__gt=now - timedelta(days=1))
    rented_for = _filter_rented(lately)
    return (
        check.job.price_micros >= RENTED_FROM_MICROS
        and rented_for.count() < RENTED_A_DAY
        and any(may_rent(check) for may_rent in _renters)
    )


def _filter_rented(checks: QuerySet[SpotCheck]) -> QuerySet[SpotCheck]:
    """Checks for which the house may rent a machine: they wait for longer."""
    return checks.filter(gives_up_at__gt=F("created_at") + SCORE_GIVEN_UP_AFTER)


def lacks_checker(*, zone_id: str, now: datetime) -> bool:
    """Whether a result waits for a machine that the house may rent, and no node could measure it.

    What other nodes were to measure, and no longer can, brings no machine: nobody counts those.
    """
    waiting = _filter_rented(_list_scores().filter(zone=zone_id, state=ErrandState.WAITING))
    found = waiting.select_related("zone", "job", "slice__node__provider__organisation", "confirms")
    return any(find_checker(check, now=now) is None for check in found)
