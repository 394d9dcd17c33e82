from celery import shared_task

from marketplace.common import clock
from marketplace.webhooks.delivery import delete_old_messages, deliver_all
from marketplace.webhooks.outbox import DELIVER


@shared_task(name=DELIVER)
def deliver_messages() -> None:
    deliver_all(clock=clock.now)


@shared_task(name="webhooks.delete_old")
def delete_messages() -> None:
    delete_old_messages(now=clock.now())
