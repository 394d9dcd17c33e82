"""Celery tasks; each may run twice."""

from celery import shared_task

from marketplace.common import clock
from marketplace.vendors import reports, services


@shared_task(name="vendors.prepare")
def prepare() -> None:
    while services.prepare_next(clock=clock.now):
        pass


@shared_task(name="vendors.inspect")
def inspect() -> None:
    while reports.inspect_next(clock=clock.now):
        pass
