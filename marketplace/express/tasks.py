"""Celery tasks; each may run twice."""

from celery import shared_task

from marketplace.common import clock
from marketplace.express import bank


@shared_task(name="express.prepare_lookups")
def prepare_lookups() -> None:
    bank.prepare_lookups(now=clock.now())


@shared_task(name="express.record_finished_jobs")
def record_finished_jobs() -> None:
    bank.record_finished_jobs(now=clock.now())
