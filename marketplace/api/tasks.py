from celery import shared_task

from marketplace.api.idempotency import records_sweep
from marketplace.common import clock


@shared_task(name="api.idempotency_sweep")
def idempotency_sweep() -> None:
    records_sweep(now=clock.now())
