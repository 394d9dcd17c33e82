"""A real lane: a Celery worker of the lane queue in its own process, on the test database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import redis
from django.db import connection

from marketplace.embedded.stack import BOUND
from tests.waiting import until

ROOT = Path(__file__).parents[1]


def environment() -> dict[str, str]:
    """What makes a process use the test's own database and Redis."""
    url = urlsplit(os.environ["DATABASE_URL"])
    database = connection.settings_dict["NAME"]
    return os.environ | {
        "DJANGO_SETTINGS_MODULE": "marketplace.config.settings.test",
        "DATABASE_URL": urlunsplit(url._replace(path=f"/{database}")),
        "PYTHONPATH": str(ROOT),
    }


def clear_queue() -> None:
    """Forget wake-ups that earlier tests left behind."""
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
        client.flushdb()


def count_waiting_lanes() -> int:
    """Clients of Redis that wait for a task; one that is stopped does so for a second more."""
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
        return int(client.info("clients")["blocked_clients"])


class LaneProcess:
    """One worker; ``kill`` is kill -9, of its whole group."""

    def __init__(self, *, name: str, log_dir: Path, queues: str, database_url: str = "") -> None:
        self.log = log_dir / f"{name}.log"
        command = ["celery", "--app", "marketplace.config.celery", "worker", "--queues", queues]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(BOUND), "--", sys.executable, "-W", "ignore", "-m", *command]
                + ["--pool", "solo", "--loglevel", "INFO", "--without-gossip", "--without-mingle"]
                + ["--hostname", f"{name}-{os.getpid()}@test"],
                cwd=ROOT,
                env=environment() | ({"DATABASE_URL": database_url} if database_url else {}),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def ready(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(f"the lane ended: {self.log.read_text()[-3000:]}")
        return " ready." in self.log.read_text()

    def pause(self) -> None:
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)


@contextmanager
def lane(
    *, log_dir: Path, name: str = "lane", queues: str = "lane", database_url: str = ""
) -> Iterator[LaneProcess]:
    """A lane, or another worker, that is ready to work; killed at the end."""
    process = LaneProcess(name=name, log_dir=log_dir, queues=queues, database_url=database_url)
    try:
        until(process.ready, what=f"{name} is ready")
        yield process
    finally:
        process.kill()


def end_blocked_backends() -> None:
    """Let the sessions of killed processes go, as the server would in time."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname ="
            " current_database() AND pid <> pg_backend_pid() AND wait_event_type = 'Lock'"
        )


def blocked_backends() -> int:
    """Other sessions of the test database that wait for a lock."""
    with connection.cursor() as cursor:
        # Within a transaction the server shows what it saw first.
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND wait_event_type = 'Lock'"
        )
        return cursor.fetchone()[0]
