"""Celery tasks; each may run twice."""

from celery import shared_task

from marketplace.common import clock
from marketplace.common.outbound import FetchFailed
from marketplace.vendors import reports, services
from marketplace.vendors.handover import tell_vendor


@shared_task(name="vendors.prepare")
def prepare() -> None:
    while services.prepare_next(clock=clock.now):
        pass


@shared_task(name="vendors.tell", autoretry_for=(FetchFailed,), retry_backoff=5, max_retries=6)
def tell(*, preparation_id: str) -> None:
    tell_vendor(preparation_id=preparation_id, now=clock.now())


@shared_task(name="vendors.inspect")
def inspect() -> None:
    while reports.inspect_next(clock=clock.now):
        pass
