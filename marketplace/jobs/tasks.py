"""Celery tasks; each may run twice."""

from celery import shared_task

from marketplace.common import clock
from marketplace.jobs import errands, services


@shared_task(name="jobs.slots_dispatch")
def dispatch_slots() -> None:
    services.dispatch_slots(now=clock.now())


@shared_task(name="jobs.leases_sweep")
def sweep_leases() -> None:
    services.sweep_leases(now=clock.now())


@shared_task(name="jobs.uploads_sweep")
def sweep_uploads() -> None:
    services.sweep_uploads(now=clock.now())
    services.sweep_parted_uploads(now=clock.now())


@shared_task(name="jobs.errands_tick")
def tick_errands() -> None:
    errands.sweep_errands(now=clock.now())
    errands.hand_out_errands(now=clock.now())


@shared_task(name="jobs.delete_unretained")
def delete_unretained() -> None:
    services.delete_unretained(now=clock.now())
    services.delete_checkpoint_models(now=clock.now())
