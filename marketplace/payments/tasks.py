from celery import shared_task

from marketplace.common import clock
from marketplace.payments.earnings import mature_earnings


@shared_task(name="payments.earnings_mature")
def earnings_mature_task() -> None:
    mature_earnings(now=clock.now())
