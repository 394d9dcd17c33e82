"""Celery tasks; each may run twice."""

from celery import shared_task

from marketplace.common import clock
from marketplace.warm import donors, offers


@shared_task(name="warm.list_donors")
def list_donors() -> None:
    donors.list_new_donors(now=clock.now())


@shared_task(name="warm.offers_sweep")
def sweep_offers() -> None:
    offers.sweep_offers(now=clock.now())
