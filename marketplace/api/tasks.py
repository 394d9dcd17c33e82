from celery import shared_task

from marketplace.api.kept_answers import sweep_records
from marketplace.common import clock


@shared_task(name="api.idempotency_sweep")
def sweep_idempotency() -> None:
    sweep_records(now=clock.now())
