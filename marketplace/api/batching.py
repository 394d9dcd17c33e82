"""Natural batching: what was submitted while one batch ran is the next batch."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from django.db import connection

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Runs a function on batches of items, on one thread, and resolves a future for each item.

    A lone item is processed at once; items that come in a crowd share a batch. Submit from any
    thread or event loop. A future that is cancelled before its batch starts takes its item along.

    Parameters
    ----------
    process
        Gives a result or an exception for each item, in order. What it raises itself becomes the
        exception of every item of the batch.
    limit
        Most items of one batch.
    pace_s
        Least time between the starts of a batch of this size and of the next one.
    """

    def __init__(
        self,
        process: Callable[[list[Item]], Sequence[Result | Exception]],
        *,
        name: str,
        limit: int,
        pace_s: Callable[[int], float],
    ) -> None:
        self._process = process
        self._limit = limit
        self._pace_s = pace_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._queue: deque[tuple[Item, Future[Result]]] = deque()
        self._running = False
        self._next_at = float("-inf")

    def submit(self, item: Item) -> Future[Result]:
        """Queue an item for the next batch."""
        future: Future[Result] = Future()
        with self._lock:
            self._queue.append((item, future))
            if not self._running:
                self._running = True
                self._thread.submit(self._run)
        return future

    def _run(self) -> None:
        """Process batches until the queue is empty."""
        try:
            while True:
                time.sleep(max(0.0, self._next_at - time.monotonic()))
                batch = self._take_batch()
                if batch is None:
                    return
                self._run_batch(batch)
        finally:
            connection.close()

    def _take_batch(self) -> list[tuple[Item, Future[Result]]] | None:
        with self._lock:
            if not self._queue:
                self._running = False
                return None
            size = min(self._limit, len(self._queue))
            taken = [self._queue.popleft() for _ in range(size)]
        return [(item, future) for item, future in taken if future.set_running_or_notify_cancel()]

    def _run_batch(self, batch: Sequence[tuple[Item, Future[Result]]]) -> None:
        self._next_at = time.monotonic() + self._pace_s(len(batch))
        if not batch:
            return
        results: Sequence[Result | Exception]
        try:
            results = self._process([item for item, _ in batch])
        except Exception as error:
            results = [error] * len(batch)
        if connection.errors_occurred:
            # A crowd may keep this thread busy for long; the next batch gets a fresh connection.
            connection.close()
        for (_, future), result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
