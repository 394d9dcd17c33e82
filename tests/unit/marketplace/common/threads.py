"""Running the same thing at the same moment, on database connections of its own."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Any

from django.db import connection, connections


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Starts all ``calls`` together; returns their results, or the exceptions they raised."""
    barrier = Barrier(len(calls), timeout=30)

    def run(call: Callable[[], Any]) -> Any:
        try:
            barrier.wait()
            return call()
        except Exception as raised:
            return raised
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


@contextmanager
def in_between(call: Callable[[], Any]) -> Iterator[Callable[[], Future[Any]]]:
    """Let a transaction under way start another act, on a connection of its own.

    What it gives starts ``call`` and returns once that has ended, or waits for a lock of the
    transaction; the block ends once it has ended.
    """
    with ThreadPoolExecutor(1) as pool:

        def run() -> Any:
            try:
                return call()
            finally:
                connections.close_all()

        def start() -> Future[Any]:
            future = pool.submit(run)
            while not future.done() and not is_waited_for(connection.connection.info.backend_pid):
                pass
            return future

        yield start


def is_waited_for(pid: int) -> bool:
    """Whether another session waits for a lock that a database session holds.

    A transaction under way sees locks as they are, and sessions as they were as it looked first.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM pg_locks WHERE NOT granted AND %s = ANY (pg_blocking_pids(pid))", [pid]
        )
        return cursor.fetchone() is not None
