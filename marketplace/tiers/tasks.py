"""Celery tasks; each may run twice."""

from celery import shared_task

from marketplace.common import clock
from marketplace.tiers import services


@shared_task(name="tiers.tick")
def tick() -> None:
    services.tiers_tick(now=clock.now())


@shared_task(name="tiers.reconcile")
def reconcile() -> None:
    services.machines_reconcile(now=clock.now())
