"""The bids of one web process: gathered, written together, answered when decided.

Natural batching: whatever came while the last group was written is the next one,
so a lone bid is written at once and a crowd shares a commit. Nobody holds a
thread while waiting: one thread writes, one reads what was decided, and the
process's one listening connection says when there is something to read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from django.db import connections

from marketplace.api.market.group import (
    Answer,
    PassOn,
    Post,
    Reply,
    Waiting,
    answer_to_error,
    posts_place,
    waiting_answers,
)
from marketplace.auction.bidding import wait
from marketplace.auction.lane import wakeups
from marketplace.auction.lane.wakeups import LOOK_EVERY_S
from marketplace.common import clock

log = logging.getLogger(__name__)

#: Most requests of one group; more wait for the next.
GROUP_LIMIT = 64
#: Least time from one group's start to the next one's.
PACE_S = 0.02
#: The same after a group of so many: in a crowd, larger groups cost each bid less, here and in the
#: lane, and a machine that is not kept busy with small ones answers sooner.
CROWD, CROWD_PACE_S = 4, 0.04
#: Notifications remembered, for bids that are decided before we know that we wait for them.
HEARD_KEPT = 4096

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Ticket:
    post: Post
    #: Of an ``Answer`` or ``PassOn``.
    reply: asyncio.Future[Answer | PassOn]


@dataclass(slots=True, eq=False)
class _Bid:
    """One bid that somebody waits for; several may, under one idempotency key."""

    waiting: list[tuple[_Ticket, Waiting]] = field(default_factory=list)
    #: The time to wait is over: the next look is the last.
    late: bool = False


class Desk:
    """Takes in bids for one event loop; call everything on that loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._queue: deque[_Ticket] = deque()
        self._writing = False
        self._reading = False
        self._next_at = float("-inf")
        self._bids: dict[str, _Bid] = {}
        #: Bids to look at.
        self._due: dict[str, None] = {}
        self._heard: dict[str, None] = {}
        self._looking: asyncio.TimerHandle | None = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="bids-in")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="bids-out")
        wakeups.listener.follow(self._hear)

    async def reply(self, post: Post) -> Answer | PassOn:
        """The answer to one request: the decision, or within ``services.WAIT_S`` what is known."""
        ticket = _Ticket(post, self.loop.create_future())
        self._queue.append(ticket)
        self._write_soon()
        return await ticket.reply

    def close(self) -> None:
        """Forget those who wait; what was begun is finished."""
        wakeups.listener.unfollow(self._hear)
        if self._looking is not None:
            self._looking.cancel()
        self._writer.shutdown()
        self._reader.shutdown()

    # -- in ------------------------------------------------------------------

    def _write_soon(self) -> None:
        if self._queue and not self._writing:
            self._writing = True
            self.loop.call_at(max(self.loop.time(), self._next_at), self._write)

    def _write(self) -> None:
        group = [self._queue.popleft() for _ in range(min(GROUP_LIMIT, len(self._queue)))]
        self._next_at = self.loop.time() + (CROWD_PACE_S if len(group) >= CROWD else PACE_S)
        # Whoever left before being written has not bid.
        group = [ticket for ticket in group if not ticket.reply.done()]
        posts = [ticket.post for ticket in group]
        work = partial(_on_own_connection, lambda: posts_place(posts, now=clock.now()))
        self.loop.run_in_executor(self._writer, work).add_done_callback(
            partial(self._written, group)
        )

    def _written(self, group: Sequence[_Ticket], work: asyncio.Future[list[Reply]]) -> None:
        self._writing = False
        error = work.exception()
        if error is not None:
            log.error("a group of %d bids was not taken in", len(group), exc_info=error)
            for ticket in group:
                _give(ticket, answer_to_error(ticket.post, _as_exception(error)))
        else:
            for ticket, reply in zip(group, work.result(), strict=True):
                if isinstance(reply, Waiting):
                    self._wait(ticket, reply)
                else:
                    _give(ticket, reply)
        self._write_soon()
        self._read_soon()

    # -- waiting -------------------------------------------------------------

    def _wait(self, ticket: _Ticket, waiting: Waiting) -> None:
        bid_id = waiting.placed.bid.pk
        bid = self._bids.setdefault(bid_id, _Bid())
        bid.waiting.append((ticket, waiting))
        self.loop.call_later(wait.WAIT_S, self._time_is_over, bid_id, bid)
        if waiting.placed.earlier or bid_id in self._heard:
            self._due[bid_id] = None
        if self._looking is None:
            self._looking = self.loop.call_later(LOOK_EVERY_S, self._look)

    def _time_is_over(self, bid_id: str, bid: _Bid) -> None:
        if self._bids.get(bid_id) is bid:
            bid.late = True
            self._due[bid_id] = None
            self._read_soon()

    def _hear(self, bid_ids: list[str]) -> None:
        """Called on the listener's thread."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._decided, bid_ids)

    def _decided(self, bid_ids: list[str]) -> None:
        for bid_id in bid_ids:
            self._heard[bid_id] = None
            if bid_id in self._bids:
                self._due[bid_id] = None
        while len(self._heard) > HEARD_KEPT:
            del self._heard[next(iter(self._heard))]
        self._read_soon()

    def _look(self) -> None:
        """A notification may be lost; nobody waits longer for it than this."""
        self._looking = None
        wakeups.listener.follow(self._hear)
        if self._bids:
            self._due |= dict.fromkeys(self._bids)
            self._read_soon()
            self._looking = self.loop.call_later(LOOK_EVERY_S, self._look)

    # -- out -----------------------------------------------------------------

    def _read_soon(self) -> None:
        if not self._due or self._reading:
            return
        self._reading = True
        due = [(bid_id, self._bids[bid_id]) for bid_id in self._due if bid_id in self._bids]
        self._due.clear()
        rows = [
            (bid_id, bid.late, ticket, waiting)
            for bid_id, bid in due
            for ticket, waiting in bid.waiting
        ]
        work = partial(_on_own_connection, lambda: _read(rows))
        self.loop.run_in_executor(self._reader, work).add_done_callback(partial(self._read, rows))

    def _read(self, rows: Sequence[_Row], work: asyncio.Future[dict[int, Answer]]) -> None:
        self._reading = False
        error = work.exception()
        if error is not None:
            log.error("decisions could not be read; trying again", exc_info=error)
            self._read_failed(rows, _as_exception(error))
            return
        for index, answer in work.result().items():
            self._answer(rows[index], answer)
        self._read_soon()

    def _read_failed(self, rows: Sequence[_Row], error: Exception) -> None:
        """The next look tries again; those whose time is over are told of the failure."""
        for row in rows:
            _, late, ticket, waiting = row
            if late:
                self._answer(row, answer_to_error(ticket.post, error, waiting.counted))

    def _answer(self, row: _Row, answer: Answer) -> None:
        """Answer one who waits; others may have come for the same bid meanwhile."""
        bid_id, _, ticket, waiting = row
        _give(ticket, answer)
        bid = self._bids[bid_id]
        bid.waiting.remove((ticket, waiting))
        if not bid.waiting:
            del self._bids[bid_id]


_Row = tuple[str, bool, _Ticket, Waiting]


def _read(rows: Sequence[_Row]) -> dict[int, Answer]:
    """Answers by place in ``rows``."""
    answers: dict[int, Answer] = {}
    for late in (False, True):
        places = [index for index, row in enumerate(rows) if row[1] is late]
        if places:
            found = waiting_answers([rows[index][3] for index in places], last=late)
            answers |= {places[place]: answer for place, answer in found.items()}
    return answers


def _give(ticket: _Ticket, reply: Answer | PassOn) -> None:
    if not ticket.reply.done():
        ticket.reply.set_result(reply)


def _on_own_connection(work: Callable[[], T]) -> T:
    """Work with this thread's connection, which goes back to the pool afterwards."""
    connections["default"].close_if_unusable_or_obsolete()
    try:
        return work()
    finally:
        connections["default"].close_if_unusable_or_obsolete()


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(repr(error))
