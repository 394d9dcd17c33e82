"""Waking the lane when bids arrive, and those who wait when bids are decided.

Nothing here is needed for correctness: the sweep finds bids whose wake-up was
lost, and a waiter looks at the row itself. The lane is woken through Celery,
once for any number of bids that wait. Waiters are woken by PostgreSQL's NOTIFY,
which is sent by the very commit that makes the decisions visible.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.core.cache import cache
from django.db import connections, transaction

from marketplace.common.db.pipeline import Statement, write
from marketplace.common.queue import enqueue

log = logging.getLogger(__name__)

DECIDED_CHANNEL = "auction_decided"
#: Seconds a wake-up on its way suppresses others; the sweep comes as often.
WAKE_ONCE_S = 2
#: PostgreSQL refuses a NOTIFY payload of 8000 bytes; an id has 30 and a comma.
IDS_PER_NOTIFY = 240
#: Seconds the listening connection stays open after the last waiter left.
LINGER_S = 5.0
#: Seconds a waiter trusts the listener before it looks at the row itself.
LOOK_EVERY_S = 0.5


def wake_lane(*, zone_id: str) -> None:
    """Ask for one run of the zone's lane; call after commit."""
    try:
        if not cache.add(_wake_key(zone_id), 1, timeout=WAKE_ONCE_S):
            return
        enqueue("auction.decide_pending_bids", zone_id=zone_id)
    except Exception:  # the bid is stored; a lost wake-up must not fail the request
        log.warning("could not wake the lane of zone %s; the sweep will", zone_id, exc_info=True)


def wake_lane_on_commit(*, zone_id: str) -> None:
    transaction.on_commit(lambda: wake_lane(zone_id=zone_id))


def clear_lane_wakeup(*, zone_id: str) -> None:
    """Call before the lane looks for bids: whoever comes later sends a new wake-up."""
    try:
        cache.delete(_wake_key(zone_id))
    except Exception:
        log.warning("could not clear the wake-up of zone %s", zone_id, exc_info=True)


def notify_decided(*, bid_ids: Iterable[str]) -> None:
    """Wake those who wait for these bids when the present transaction commits."""
    ids = list(bid_ids)
    for start in range(0, len(ids), IDS_PER_NOTIFY):
        payload = ",".join(ids[start : start + IDS_PER_NOTIFY])
        write(Statement("SELECT pg_notify(%s, %s)", (DECIDED_CHANNEL, payload)))


def _wake_key(zone_id: str) -> str:
    return f"auction:lane:{zone_id}:woken"


class DecisionListener:
    """Hears of decisions for one process, on one connection, while somebody waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, list[threading.Event]] = {}
        self._followers: list[Callable[[list[str]], None]] = []
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._closing = False

    @contextmanager
    def waiting_for(self, bid_ids: Collection[str]) -> Iterator[threading.Event]:
        """An event that is set when one of the bids has been decided after this moment."""
        event = threading.Event()
        with self._lock:
            for bid_id in bid_ids:
                self._waiting.setdefault(bid_id, []).append(event)
            self._start()
        try:
            self._ready.wait(LOOK_EVERY_S)
            yield event
        finally:
            with self._lock:
                for bid_id in bid_ids:
                    events = self._waiting[bid_id]
                    events.remove(event)
                    if not events:
                        del self._waiting[bid_id]

    def follow(self, heard: Callable[[list[str]], None]) -> None:
        """Tell of all decided bids from now on, on a thread of the listener's; never twice."""
        with self._lock:
            if heard not in self._followers:
                self._followers.append(heard)
            self._start()

    def unfollow(self, heard: Callable[[list[str]], None]) -> None:
        with self._lock:
            self._followers.remove(heard)

    def close(self) -> None:
        """End the connection now instead of after ``LINGER_S``; the next waiter opens another."""
        with self._lock:
            thread, self._closing = self._thread, True
        if thread is not None:
            thread.join(2 * LOOK_EVERY_S + 5)

    def _start(self) -> None:
        """Listen, unless somebody does; call while holding the lock."""
        if self._thread is None:
            self._closing = False
            self._ready.clear()
            self._thread = threading.Thread(target=self._run, name="auction-decisions", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        idle_since = time.monotonic()
        while True:
            try:
                with self._connect() as listening:
                    listening.execute(f"LISTEN {DECIDED_CHANNEL}")
                    self._ready.set()
                    while True:
                        for note in listening.notifies(timeout=LOOK_EVERY_S / 2):
                            self._wake(note.payload.split(","))
                        with self._lock:
                            if self._waiting or self._followers:
                                idle_since = time.monotonic()
                            if self._closing or time.monotonic() - idle_since > LINGER_S:
                                self._thread = None
                                return
            except psycopg.Error:
                log.warning("listening for decisions failed; trying again", exc_info=True)
                self._ready.clear()
                with self._lock:
                    if self._closing or not (self._waiting or self._followers):
                        self._thread = None
                        return
                time.sleep(LOOK_EVERY_S)

    def _connect(self) -> psycopg.Connection:
        parameters: dict[str, Any] = connections["default"].get_connection_params()  # type: ignore[assignment]
        parameters.pop("cursor_factory", None)
        parameters.pop("context", None)
        return psycopg.connect(**parameters, autocommit=True)

    def _wake(self, bid_ids: list[str]) -> None:
        with self._lock:
            for bid_id in bid_ids:
                for event in self._waiting.get(bid_id, ()):
                    event.set()
            followers = list(self._followers)
        for heard in followers:
            heard(bid_ids)


listener = DecisionListener()
