"""Celery tasks; each may run twice."""

from celery import shared_task

from marketplace.common import clock
from marketplace.tracking.sending import delete_unused_runs, send_next

#: Batches of one task, so that others of its queue have their turn.
BATCHES = 8


@shared_task(name="tracking.send")
def send() -> None:
    for _ in range(BATCHES):
        if not send_next(clock=clock.now):
            break


@shared_task(name="tracking.delete_unused")
def delete_unused() -> None:
    delete_unused_runs(now=clock.now())
