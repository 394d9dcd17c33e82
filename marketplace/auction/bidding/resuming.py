"""A bid for the rest of a job that its owner paused.

It names the job as what it begins with (``resume:JOB``) and buys the steps after its last
checkpoint, at the price of the day. The job that it opens has the data and settings of the paused
one and goes on from that checkpoint as if it had only changed nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Exists, OuterRef, QuerySet

from marketplace.accounts.models import Organisation
from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.models import Bid, BidStatus
from marketplace.auction.selectors import get_bid
from marketplace.common.errors import Conflict, NotFound, UserError
from marketplace.common.money import format_usd_exact
from marketplace.jobs.models import Artifact, Dataset, Job, JobStatus
from marketplace.jobs.selectors import list_job_checkpoints
from marketplace.jobs.work import Work, load_work_plan, measure_job_work
from workers.protocol.job_terms import JobTerms
from workers.protocol.starts import Resumption

#: Before the id of a paused job, as a bid names it.
RESUMED = "resume:"


@dataclass(frozen=True, slots=True)
class PausedRest:
    """What is left of a paused job."""

    terms: JobTerms
    work: Work
    #: Settings of the paused job that the market chose.
    resolved: tuple[str, ...]


def measure_rest(asked: JobRequest, *, rates: dict[str, float]) -> PausedRest:
    """Measure what is left of the paused job that a request names.

    Raises
    ------
    NotFound
        ``unknown_model``.
    Conflict
        ``not_resumable``: the job is not paused.
    UserError
        ``invalid_hyperparameter``: other data or settings than the job's were asked for.
    """
    job = find_paused_job(asked.model, organisation=asked.organisation)
    _check_same(asked, job)
    work, terms = measure_job_work(job, rates=rates), replace(job.terms, preparation=None)
    checkpoint = list_job_checkpoints(job).first()
    resumes = Resumption(job.pk)
    if checkpoint is not None:
        resumes = Resumption(job.pk, checkpoint.pk, checkpoint.step)
        plan = load_work_plan(job)
        left = plan.total_units - plan.count_until(checkpoint.step)
        done = checkpoint.step * terms.training.batch_size
        work = replace(work, compute_demand=left, samples=max(1, work.samples - done))
    terms = replace(terms, resumes=resumes)
    if asked.verified_only is not None:
        terms = replace(terms, verified_only=asked.verified_only)
    if asked.metadata is not None:
        terms = replace(terms, metadata=dict(asked.metadata))
    resolved = Bid.objects.values_list("resolved", flat=True).get(pk=job.bid_id)
    return PausedRest(terms, work, tuple(resolved))


def find_paused_job(model: str, *, organisation: Organisation) -> Job:
    """Find the paused job that ``resume:JOB`` names.

    Raises
    ------
    NotFound
        ``unknown_model``: the organisation has no such job.
    Conflict
        ``not_resumable``: it is not paused, or was deleted.
    """
    job_id = model.removeprefix(RESUMED).replace("\0", "")
    own = Job.objects.filter(organisation=organisation, pk=job_id)
    job = own.select_related("zone", "dataset", "validation_dataset").first()
    if job is None:
        raise NotFound("unknown_model", f"You have no job {job_id[:60]!r}.", param="model")
    if job.status != JobStatus.PAUSED or job.deleted_at is not None:
        state = "deleted" if job.deleted_at else job.status
        raise Conflict(
            "not_resumable",
            f"Job {job.pk} is {state}; only a paused job is resumed.",
            param="model",
        )
    return job


def _check_same(asked: JobRequest, job: Job) -> None:
    """Refuse a request for another job than the paused one."""
    held_out = None if asked.validation is None else asked.validation.pk
    wrong = {
        "zone": asked.zone.pk != job.zone_id,
        "dataset_id": asked.dataset.pk != job.dataset_id,
        "validation_dataset_id": held_out not in (None, job.validation_dataset_id),
        "adapter": bool(asked.adapter),
        "training": bool(asked.training),
        "preparation": asked.preparation is not None,
    }
    for param in (name for name, is_wrong in wrong.items() if is_wrong):
        raise UserError(
            "invalid_hyperparameter",
            f"Job {job.pk} goes on with its own data and settings. Bid in zone {job.zone.name} for "
            f"data set {job.dataset_id}, and leave the rest out.",
            param=param,
        )
    for name, pk in (("data", job.dataset_id), ("validation data", job.validation_dataset_id)):
        if pk is not None and not Dataset.objects.filter(pk=pk).exists():
            raise Conflict("not_resumable", f"The {name} of job {job.pk} were deleted.")
    if job.start is not None and not job.start.dropped and _is_gone(job.start.artifact_id):
        raise Conflict("not_resumable", f"The adapter that job {job.pk} began with was deleted.")


def _is_gone(artifact_id: str) -> bool:
    """Whether a node could not fetch it any more, which it does wherever a job goes on."""
    return not Artifact.everything.filter(pk=artifact_id, deleted_at=None).exclude(file="").exists()


def refuse_resumed(drafts: Mapping[int, Bid], *, now: datetime) -> dict[int, UserError]:
    """Refuse bids for the rest of a job that another one goes on with, or is bid for.

    Call while holding the organisations' wallets; codes: ``already_resumed``. A second press of a
    button buys nothing twice.
    """
    refused: dict[int, UserError] = {}
    seen: set[str] = set()
    for index, bid in drafts.items():
        if (job_id := bid.resumed_job_id) is None:
            continue
        if job_id in seen or list_resuming_bids(job_id).exists():
            refused[index] = Conflict(
                "already_resumed",
                f"Another bid of yours goes on with {job_id}. Pause or cancel its job first.",
                param="model",
            )
        seen.add(job_id)
    return refused


def list_resuming_bids(job_id: str) -> QuerySet[Bid]:
    """Bids that wait for their answer or won, and go on with a job; not those that failed."""
    gone = Job.objects.filter(
        bid_id=OuterRef("pk"), status__in=(JobStatus.CANCELLED, JobStatus.FAILED)
    )
    live = Bid.objects.filter(status__in=(*Bid.OPEN, BidStatus.ADMITTED))
    return live.filter(~Exists(gone), resumed_job_id=job_id)


def find_price_left(job: Job) -> int:
    """What the owner's bid for a paused job leaves for its rest, micro-dollars.

    So both together cost no more than was bid at first.

    Raises
    ------
    Conflict
        ``not_settled``: what came back of the first part is not known yet; ``price_required``.
    """
    bid = get_bid(job.organisation, job.bid_id)
    if job.settled_at is None:
        raise Conflict(
            "not_settled",
            "What comes back of this job is not booked yet. Give a price, or ask again soon.",
            param="price",
        )
    if bid.asks_price:
        raise UserError(
            "price_required", "Say what the rest is worth to you: give a price.", param="price"
        )
    left = bid.price_micros - bid.paid_micros
    if left <= 0:
        raise UserError(
            "price_required",
            f"Nothing is left of the {format_usd_exact(bid.price_micros)} that you bid. Give a "
            "price.",
            param="price",
        )
    return left
