"""Celery tasks; each may run twice."""

from celery import shared_task

from marketplace.common import clock
from marketplace.fleet import services


@shared_task(name="fleet.offline_sweep")
def sweep_offline() -> None:
    now = clock.now()
    services.sweep_offline_nodes(now=now)
    services.move_sale_windows(now=now)
