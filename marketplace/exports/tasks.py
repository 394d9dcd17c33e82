"""Celery tasks; each may run twice."""

from celery import shared_task

from marketplace.common import clock
from marketplace.exports.asking import hand_out_exports
from marketplace.exports.results import sweep_exports


@shared_task(name="exports.tick")
def tick() -> None:
    sweep_exports(now=clock.now())
    hand_out_exports(now=clock.now())
