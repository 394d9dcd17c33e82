from celery import shared_task

from marketplace.common import clock
from marketplace.payments.earnings import earnings_mature


@shared_task(name="payments.earnings_mature")
def earnings_mature_task() -> None:
    earnings_mature(now=clock.now())
