from celery import shared_task

from marketplace.common import clock
from marketplace.webhooks.delivery import delete_old_messages


@shared_task(name="webhooks.delete_old")
def delete_messages() -> None:
    delete_old_messages(now=clock.now())
