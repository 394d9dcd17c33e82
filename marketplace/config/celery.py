"""The Celery application of the market; GPU nodes have one of their own."""

import os
from typing import Any

from celery import Celery, Task
from celery.signals import (
    before_task_publish,
    task_failure,
    task_postrun,
    task_prerun,
    task_success,
    worker_ready,
)

from marketplace.config.garbage_collection import freeze_gc

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "marketplace.config.settings.dev")
# They load every page, 38 MB that no task needs, and were made by ``migrate`` just before.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

app = Celery("finetender")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@app.on_after_configure.connect  # type: ignore[union-attr]
def _redbeat_configure(sender: Celery, **_: object) -> None:
    # RedBeat does not find its options among settings with a prefix.
    from django.conf import settings

    sender.conf.update(
        redbeat_redis_url=settings.REDIS_URL,
        redbeat_redis_options={"socket_connect_timeout": 2, "socket_keepalive": True},
        # Seconds until another beat takes over from one that died.
        redbeat_lock_timeout=10,
    )


@task_prerun.connect
@task_postrun.connect
def _drop_unusable_connections(sender: Task, **_: object) -> None:
    """As Django does around a request; the others keep what they have prepared."""
    from django.db import close_old_connections

    if not sender.request.is_eager:
        close_old_connections()


@before_task_publish.connect
def _note_when_sent(headers: dict[str, Any], **_: object) -> None:
    from marketplace.common import clock

    headers["sent_at_s"] = clock.now().timestamp()


@task_prerun.connect
def _note_how_long_it_waited(sender: Task, **_: object) -> None:
    from marketplace.common import clock

    sent_at_s: float | None = sender.request.get("sent_at_s")
    if sent_at_s is not None:
        sender.request.update(lag_s=max(0.0, clock.now().timestamp() - sent_at_s))


@task_success.connect
def _record_success(sender: Task, **_: object) -> None:
    from marketplace.common import clock, heartbeats

    name = str(sender.name)
    if not sender.request.is_eager and heartbeats.is_watched(name):
        heartbeats.record_success(name, now=clock.now(), lag_s=sender.request.get("lag_s"))


@task_failure.connect
def _record_failure(sender: Task, exception: BaseException, **_: object) -> None:
    from marketplace.common import clock, heartbeats

    name = str(sender.name)
    if not sender.request.is_eager and heartbeats.is_watched(name):
        words = f"{type(exception).__name__}: {exception}"
        heartbeats.record_failure(name, words, now=clock.now())


@worker_ready.connect
def _freeze_gc_when_ready(**_: object) -> None:
    freeze_gc()


@task_postrun.connect
def _freeze_gc_after_first_task(**_: object) -> None:
    # A zone's engine, its compiled kernels, and all that is imported only when it is needed.
    task_postrun.disconnect(_freeze_gc_after_first_task)
    freeze_gc()
