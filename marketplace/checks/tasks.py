"""Celery tasks; each may run twice."""

from celery import shared_task

from marketplace.checks import fault_checks, sampling
from marketplace.common import clock


@shared_task(name="checks.choose")
def choose_checks() -> None:
    sampling.choose_checks(now=clock.now())
    fault_checks.open_fault_checks(now=clock.now())
