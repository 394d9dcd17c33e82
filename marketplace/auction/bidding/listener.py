"""Hearing of decisions: one listening connection for all waiting requests of a process.

PostgreSQL sends a notification with the commit that makes a decision visible. A notification may
be lost with its connection, so a waiting request also looks at the row every ``LOOK_EVERY_S``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from django.db import connections

from marketplace.auction.lane.wakeups import DECIDED_CHANNEL

log = logging.getLogger(__name__)

#: Seconds the connection stays open after the last request stopped waiting.
LINGER_S = 5.0
#: Seconds a waiting request trusts the listener before it looks at the row itself.
LOOK_EVERY_S = 0.5
#: Decisions remembered, for requests that begin to wait after the notification came.
RECENT_MAX = 4096


class DecisionListener:
    """Resolves futures of bids as soon as the bids are decided."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._futures: dict[str, list[Future[None]]] = {}
        self._recent: dict[str, None] = {}
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._closing = False
        self._used_at = 0.0

    def listen(self) -> None:
        """Be sure to hear of every decision from now on, for ``LINGER_S`` at least.

        Call before the bid is stored. Gives up waiting for the connection after ``LOOK_EVERY_S``.
        """
        with self._lock:
            self._start()
        self._ready.wait(LOOK_EVERY_S)

    @contextmanager
    def expecting(self, bid_id: str) -> Iterator[Future[None]]:
        """A future that is done once the bid is decided, or was decided since ``listen``."""
        future: Future[None] = Future()
        with self._lock:
            if bid_id in self._recent:
                future.set_result(None)
            self._futures.setdefault(bid_id, []).append(future)
            self._start()
        try:
            yield future
        finally:
            with self._lock:
                waiting = self._futures[bid_id]
                waiting.remove(future)
                if not waiting:
                    del self._futures[bid_id]

    def is_expected(self, bid_id: str) -> bool:
        """Whether a request of this process waits for the bid."""
        with self._lock:
            return bid_id in self._futures

    def close(self) -> None:
        """End the connection now; the next request that waits opens another."""
        with self._lock:
            thread, self._closing = self._thread, True
        if thread is not None:
            thread.join(2 * LOOK_EVERY_S + 5)

    def _start(self) -> None:
        """Listen, unless the thread does already. Call while holding the lock."""
        self._used_at = time.monotonic()
        if self._thread is None:
            self._closing = False
            self._ready.clear()
            self._thread = threading.Thread(target=self._run, name="auction-decisions", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                with self._connect() as connection:
                    connection.execute(f"LISTEN {DECIDED_CHANNEL}")
                    self._ready.set()
                    while not self._stop_if_unused(LINGER_S):
                        for note in connection.notifies(timeout=LOOK_EVERY_S / 2):
                            self._resolve(note.payload.split(","))
                    return
            except psycopg.Error:
                log.warning("listening for decisions failed; trying again", exc_info=True)
                self._ready.clear()
                if self._stop_if_unused(0.0):
                    return
                time.sleep(LOOK_EVERY_S)

    def _stop_if_unused(self, linger_s: float) -> bool:
        with self._lock:
            if self._futures and not self._closing:
                self._used_at = time.monotonic()
                return False
            if self._closing or time.monotonic() - self._used_at > linger_s:
                self._thread = None
                self._recent.clear()
                return True
            return False

    def _connect(self) -> psycopg.Connection:
        parameters: dict[str, Any] = connections["default"].get_connection_params()  # type: ignore[assignment]
        parameters.pop("cursor_factory", None)
        parameters.pop("context", None)
        return psycopg.connect(**parameters, autocommit=True)

    def _resolve(self, bid_ids: Iterable[str]) -> None:
        resolved: list[Future[None]] = []
        with self._lock:
            for bid_id in bid_ids:
                self._recent[bid_id] = None
                resolved += self._futures.get(bid_id, ())
            while len(self._recent) > RECENT_MAX:
                del self._recent[next(iter(self._recent))]
        for future in resolved:
            # A request that left has cancelled its own.
            with suppress(InvalidStateError):
                future.set_result(None)


#: The process's one listener.
listener = DecisionListener()
