"""The Celery tasks of durable work: one a kind, named like it, and their sweep."""

from celery import shared_task

from marketplace.common import clock
from marketplace.common.durable.kinds import WorkKind, get_kinds
from marketplace.common.durable.run import run_due_work
from marketplace.common.durable.services import sweep_work, wake


@shared_task(name="durable.sweep")
def sweep() -> None:
    sweep_work(now=clock.now())


def _add_task(kind: WorkKind) -> None:
    @shared_task(name=kind.name)
    def run() -> None:
        # A batch only: other tasks of the queue have their turn before the next one.
        if run_due_work(kind, clock=clock.now):
            wake(kind)


for each in get_kinds().values():
    _add_task(each)
