"""Celery tasks; each may run twice."""

from celery import shared_task

from marketplace.common import clock
from marketplace.questions import answering


@shared_task(name="questions.sweep")
def sweep() -> None:
    answering.sweep_questions(now=clock.now())
