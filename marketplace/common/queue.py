"""Handing work to Celery by name, so that callers do not import the task."""

from typing import Any

from celery import current_app
from django.db import transaction


def enqueue(
    name: str,
    *,
    delay_s: float | None = None,
    expires_s: float | None = None,
    **kwargs: Any,
) -> None:
    """Sends the Celery task ``name`` with ``kwargs`` once the transaction commits.

    The routes of the settings choose its queue. A broker that is down does not fail what was
    committed: everything enqueued is also found by a sweep of the beat.
    """

    def send() -> None:
        current_app.send_task(  # type: ignore[operator]
            name, kwargs=kwargs, countdown=delay_s, expires=expires_s
        )

    transaction.on_commit(send, robust=True)
