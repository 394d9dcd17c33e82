"""What Celery runs; each may run twice."""

from celery import shared_task

from marketplace.auction import sweeps
from marketplace.auction.settlement import settle_finished
from marketplace.common import clock


@shared_task(name="auction.decide_pending_bids")
def decide_pending_bids(*, zone_id: str) -> None:
    sweeps.zone_decide_all(zone_id=zone_id, clock=clock.now)


@shared_task(name="auction.sweep")
def sweep() -> None:
    sweeps.zones_sweep(clock=clock.now)


@shared_task(name="auction.jobs_replan")
def jobs_replan() -> None:
    sweeps.jobs_replan(now=clock.now())


@shared_task(name="auction.settle_finished")
def settle_finished_jobs() -> None:
    settle_finished(now=clock.now())
