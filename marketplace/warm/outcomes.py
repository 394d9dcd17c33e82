"""What became of warm starts: where they reached their target, what they saved, and royalties."""

from __future__ import annotations

from datetime import datetime

from marketplace.jobs.models import Job, JobStatus, MetricPoint
from marketplace.jobs.work import load_work_plan
from marketplace.warm.models import Donor, Offer
from workers.protocol.starts import Drop

#: Steps of a start whose job began again: all of its own, and the cold job's.
SHARE_OF_TWO_RUNS = 2.0
#: Organisations whose starts began again with a donor until it is given no more. One alone
#: may have data that are not what they seem.
HARMED_MAX = 2


def find_taken_offer(job: Job) -> Offer | None:
    """The offer that a job began with."""
    start = job.start
    if start is None or not start.offer_id:
        return None
    offers = Offer.objects.select_related("donor__job", "donor__organisation")
    return offers.filter(pk=start.offer_id).first()


def record_outcome(
    *, job: Job, offer: Offer, royalty_micros: int, saved_micros: int, now: datetime
) -> None:
    """Note, once, what a job that ended took of its cold work: later offers go by it."""
    if offer.measured_at is not None:
        return
    offer.job_id = job.pk
    offer.needed_share = measure_needed_share(job, offer)
    offer.measured_at = now
    offer.royalty_paid_micros, offer.saved_micros = royalty_micros, saved_micros
    offer.save(
        update_fields=[
            "job",
            "needed_share",
            "measured_at",
            "royalty_paid_micros",
            "saved_micros",
        ]
    )
    if offer.needed_share == SHARE_OF_TWO_RUNS:
        _note_harm(offer.donor)


def _note_harm(donor: Donor) -> None:
    """Take a donor from others' jobs once starts of several of them began again with it."""
    began_again = Offer.objects.filter(donor=donor, needed_share=SHARE_OF_TWO_RUNS)
    others = began_again.exclude(organisation=donor.organisation)
    if others.values("organisation").distinct().count() >= HARMED_MAX:
        Donor.objects.filter(pk=donor.pk).update(did_harm=True)


def measure_needed_share(job: Job, offer: Offer) -> float | None:
    """Share of the cold work after which the job was at its target loss.

    The first evaluation at or below the target counts, not the end: a job that was sold too many
    steps runs them all. One that was never there needed all of its work. ``None``: it did not run
    to an end, or without the adapter.
    """
    start = job.start
    if job.status != JobStatus.SUCCEEDED or start is None:
        return None
    if start.dropped is not None:
        return SHARE_OF_TWO_RUNS if start.dropped is Drop.FELL_BEHIND else None
    points = MetricPoint.objects.filter(job=job, valid_loss__lte=offer.target_loss)
    step = points.order_by("step").values_list("step", flat=True).first()
    if step is None:
        return 1.0
    return load_work_plan(job).count_ended_at(step) / offer.cold_units
