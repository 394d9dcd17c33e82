"""Celery tasks; each may run twice."""

from celery import shared_task

from marketplace.checks.asking import ask_checks
from marketplace.checks.choosing import choose_checks
from marketplace.common import clock


@shared_task(name="checks.tick")
def tick() -> None:
    now = clock.now()
    choose_checks(now=now)
    ask_checks(now=now)
