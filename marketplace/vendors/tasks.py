"""Celery tasks; each may run twice."""

from celery import shared_task

from marketplace.common import clock
from marketplace.vendors import services


@shared_task(name="vendors.prepare")
def prepare() -> None:
    while services.prepare_next(clock=clock.now):
        pass
