"""After its database was restarted, a web process that was idle meanwhile answers at once."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.db.backends.postgresql.base import DatabaseWrapper

from marketplace.common.db.pooled import POOL_OPTIONS, WAIT_S
from marketplace.embedded.servers import prepare_postgres, wait_for_postgres
from marketplace.embedded.stack import Stack
from tests.servers_plugin import RUNS_DIR

THREADS = 8


@contextmanager
def ended_sessions() -> Iterator[tuple[dict[str, Any], Callable[[], None]]]:
    """The tests' server, of which all sessions of a role are ended."""
    place = connection.settings_dict

    def end_sessions() -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE application_name = 'idle web process'"
            )

    yield {name: place[name] for name in ("NAME", "USER", "HOST", "PORT")}, end_sessions


@contextmanager
def restarted() -> Iterator[tuple[dict[str, Any], Callable[[], None]]]:
    """A server of its own, which is stopped and started again."""
    # Not in pytest's own folders, which the server's account may not enter.
    folder = RUNS_DIR / f"restart-{os.getpid()}"
    postgres = prepare_postgres(data_dir=folder, durable=False)
    with Stack(data_dir=folder, programs=[postgres.program]) as stack:
        stack.start("postgres")
        wait_for_postgres(postgres)

        def restart() -> None:
            stack.restart("postgres")
            wait_for_postgres(postgres)

        host = str(postgres.socket_dir)
        yield {"NAME": "postgres", "USER": "postgres", "HOST": host, "PORT": ""}, restart
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "server", [ended_sessions, pytest.param(restarted, marks=pytest.mark.nightly)]
)
def test_the_first_request_after_a_restart_is_answered(server):
    with server() as (place, restart):
        options = {"pool": POOL_OPTIONS | {"max_size": THREADS}}
        options["application_name"] = "idle web process"
        web = {**settings.DATABASES["default"], **place, "CONN_MAX_AGE": 0, "OPTIONS": options}
        threads = [DatabaseWrapper(web, "idle web process") for _ in range(THREADS)]
        made = threads[0]
        try:
            # As many connections as were needed at once lie idle.
            for thread in threads:
                thread.ensure_connection()
            for thread in threads:
                thread.close()
            assert made.pool.get_stats()["pool_available"] == THREADS
            restart()
            began = time.monotonic()
            answer = ask(web)
            took_s = time.monotonic() - began
        finally:
            made.close_pool()
    assert answer == 1
    assert took_s < WAIT_S / 2


def ask(web: dict[str, Any]) -> int:
    """A request's first statement, on a connection that goes back to the pool."""
    request = DatabaseWrapper(web, "idle web process")
    try:
        with request.cursor() as cursor:
            cursor.execute("SELECT 1")
            return cursor.fetchone()[0]
    finally:
        request.close()
