"""Running the same thing at the same moment, on database connections of its own."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from django.db import connections


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
