"""Celery tasks; each may run twice."""

from celery import shared_task

from marketplace.common import clock
from marketplace.express import answering, bank, seat_autoscaler


@shared_task(name="express.answer_requests")
def answer_requests(*, zone_id: str) -> None:
    answering.answer_requests(zone_id=zone_id, now=clock.now())


@shared_task(name="express.tick")
def tick() -> None:
    seat_autoscaler.run_ticks(now=clock.now())


@shared_task(name="express.prepare_lookups")
def prepare_lookups() -> None:
    bank.prepare_lookups(now=clock.now())


@shared_task(name="express.record_finished_jobs")
def record_finished_jobs() -> None:
    bank.record_finished_jobs(now=clock.now())
