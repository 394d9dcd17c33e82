"""PostgreSQL's notifications: one listening connection of a process for all that wait in it.

PostgreSQL sends a notification with the commit that makes a change visible. One may be lost with
its connection, so what waits also looks at the rows now and then.
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
from django.db import connection, connections
from psycopg import sql

log = logging.getLogger(__name__)

#: Seconds the connection stays open after the last waiter left.
LINGER_S = 5.0
#: Seconds until a failed connection is tried again, and most of them that ``listen`` waits.
RETRY_S = 0.5
#: PostgreSQL refuses a NOTIFY payload of 8000 bytes; an id has 31 at most, and a comma.
KEYS_PER_NOTIFY = 240


def notify(channel: str, keys: Iterable[str]) -> None:
    """Wake what waits for these keys, in any process, when the present transaction commits."""
    listed = list(keys)
    with connection.cursor() as cursor:
        for start in range(0, len(listed), KEYS_PER_NOTIFY):
            payload = ",".join(listed[start : start + KEYS_PER_NOTIFY])
            cursor.execute("SELECT pg_notify(%s, %s)", [channel, payload])


class NotificationListener:
    """Resolves futures of keys as soon as the keys are notified.

    Parameters
    ----------
    recent_max
        Keys remembered, for those that begin to wait after the notification came; 0 where a key is
        notified more than once.
    """

    def __init__(self, channel: str, *, recent_max: int) -> None:
        self._channel = channel
        self._recent_max = recent_max
        self._lock = threading.Lock()
        self._futures: dict[str, list[Future[None]]] = {}
        self._recent: dict[str, None] = {}
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._closing = False
        self._used_at = 0.0

    def listen(self) -> None:
        """Be sure to hear of every notification from now on, for ``LINGER_S`` at least.

        Call before the rows are read or written. Waits ``RETRY_S`` at most for the connection.
        """
        with self._lock:
            self._start()
        self._ready.wait(RETRY_S)

    @contextmanager
    def expecting(self, key: str) -> Iterator[Future[None]]:
        """A future that is done once the key is notified."""
        future: Future[None] = Future()
        with self._lock:
            if key in self._recent:
                future.set_result(None)
            self._futures.setdefault(key, []).append(future)
            self._start()
        try:
            yield future
        finally:
            with self._lock:
                waiting = self._futures[key]
                waiting.remove(future)
                if not waiting:
                    del self._futures[key]

    def close(self) -> None:
        """End the connection now; the next that waits opens another."""
        with self._lock:
            thread, self._closing = self._thread, True
        if thread is not None:
            thread.join(2 * RETRY_S + 5)

    def _start(self) -> None:
        """Listen, unless the thread does already. Call while holding the lock."""
        self._used_at = time.monotonic()
        if self._thread is None:
            self._closing = False
            self._ready.clear()
            self._thread = threading.Thread(target=self._run, name=self._channel, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                with self._connect() as connection:
                    connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
                    self._ready.set()
                    while not self._stop_if_unused(LINGER_S):
                        for note in connection.notifies(timeout=RETRY_S / 2):
                            self._hear(note.payload.split(","))
                    return
            except psycopg.Error:
                log.warning("listening to %s failed; trying again", self._channel, exc_info=True)
                self._ready.clear()
                if self._stop_if_unused(0.0):
                    return
                time.sleep(RETRY_S)

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

    def _hear(self, keys: Iterable[str]) -> None:
        resolved: list[Future[None]] = []
        with self._lock:
            for key in keys:
                self._recent[key] = None
                resolved += self._futures.get(key, ())
            while len(self._recent) > self._recent_max:
                del self._recent[next(iter(self._recent))]
        _resolve(resolved)


def _resolve(futures: Iterable[Future[None]]) -> None:
    for future in futures:
        # What left has cancelled its own.
        with suppress(InvalidStateError):
            future.set_result(None)
