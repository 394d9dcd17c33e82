from celery import shared_task

from marketplace.common import clock
from marketplace.webhooks.delivery import delete_old_messages
from marketplace.webhooks.notices import delete_old_notices


@shared_task(name="webhooks.delete_old")
def delete_messages() -> None:
    delete_old_messages(now=clock.now())
    delete_old_notices(now=clock.now())
