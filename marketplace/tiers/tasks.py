"""Celery tasks; each may run twice."""

from celery import shared_task

from marketplace.common import clock
from marketplace.tiers import services
from marketplace.tiers.profits import sum_profits


@shared_task(name="tiers.tick")
def tick() -> None:
    services.run_tier_tick(now=clock.now())


@shared_task(name="tiers.profits_sum")
def sum_up_profits() -> None:
    sum_profits()


@shared_task(name="tiers.reconcile")
def reconcile() -> None:
    services.reconcile_machines(now=clock.now())
