"""Blocking work beside an event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connection

T = TypeVar("T")


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run blocking work; its database connection goes back to the pool at once."""

    def run() -> T:
        try:
            return work()
        finally:
            if not connection.in_atomic_block:
                connection.close()

    async with ThreadSensitiveContext():
        return await sync_to_async(run)()
