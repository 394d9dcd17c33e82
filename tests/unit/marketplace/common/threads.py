"""Running the same thing at the same moment, on database connections of its own."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Event
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

    What it gives starts ``call`` and returns once that has ended, or waits for a lock; the block
    ends once it has ended.
    """
    with ThreadPoolExecutor(1) as pool:

        def start() -> Future[Any]:
            known, begun = [], Event()

            def run() -> Any:
                try:
                    connection.ensure_connection()
                    known.append(connection.connection.info.backend_pid)
                    begun.set()
                    return call()
                finally:
                    begun.set()
                    connections.close_all()

            future = pool.submit(run)
            begun.wait()
            while not future.done() and not _waits(known[0]):
                pass
            return future

        yield start


def _waits(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 WHERE cardinality(pg_blocking_pids(%s)) > 0", [pid])
        return cursor.fetchone() is not None
