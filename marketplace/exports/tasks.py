"""Celery tasks; each may run twice."""

from celery import shared_task

from marketplace.common import clock
from marketplace.exports.errands import delete_old_files


@shared_task(name="exports.delete_old_files")
def delete_files() -> None:
    delete_old_files(now=clock.now())
