"""``/api/jobs/ID/events/stream``: a job's events as they happen (server-sent events).

The group of the job is joined before the database is read, so nothing falls in between. A message
that Redis lost shows as a gap in ``seq``; then the database is read again. It is read every few
seconds in any case. Neither waiting nor sending holds a thread.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from channels.layers import get_channel_layer
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from redis.exceptions import RedisError
from rest_framework.exceptions import Throttled
from rest_framework.request import Request

from marketplace.accounts.models import Organisation
from marketplace.api.callers import Standing, find_standing, get_caller
from marketplace.api.market import schemas
from marketplace.api.market.owned import get_job
from marketplace.api.views import AlwaysJson, MarketView
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.common.threads import run_in_thread
from marketplace.jobs.event_files import read_events
from marketplace.jobs.journal import serialize_event, serialize_progress
from marketplace.jobs.models import Job

log = logging.getLogger(__name__)

LAST_ID = "Last-Event-ID"
#: Seconds between two looks at the database; a comment keeps proxies from cutting the connection.
LOOK_EVERY_S = 10.0
#: Streams that one organisation may hold open, in each process of the web server.
STREAMS_MAX = 100
#: Seconds after which one that is refused may come again.
_AGAIN_AFTER_S = 10

_open_streams: Counter[str] = Counter()


class Shutdown:
    """Tells streams that their process is about to end; their clients connect again."""

    def __init__(self) -> None:
        self.is_near = False
        self._waiting: set[asyncio.Future[None]] = set()

    def expect(self) -> asyncio.Future[None]:
        """Done once the process is about to end."""
        ended = asyncio.get_running_loop().create_future()
        if self.is_near:
            ended.set_result(None)
        self._waiting.add(ended)
        ended.add_done_callback(self._waiting.discard)
        return ended

    def stop(self) -> None:
        """End every stream. Call on the event loop."""
        self.is_near = True
        for ended in list(self._waiting):
            if not ended.done():
                ended.set_result(None)


shutdown = Shutdown()


class JobEventStreamView(MarketView):
    """The job's history and its progress as they happen, as server-sent events.

    The id of an event is its ``seq``: with ``Last-Event-ID`` a client that was cut off goes on
    after it. Each event's data is JSON; ``progress`` tells where the job stands. ``end`` comes once
    the job has ended.
    """

    content_negotiation_class = AlwaysJson
    scopes = {"GET": "jobs:read"}

    @extend_schema(
        operation_id="jobs_events_stream",
        parameters=[
            OpenApiParameter(
                LAST_ID,
                schemas.CURSOR,
                OpenApiParameter.HEADER,
                description="seq of the last event seen; without it, all are sent.",
            )
        ],
        responses={(200, "text/event-stream"): OpenApiResponse(OpenApiTypes.STR)},
    )
    def get(self, request: Request, job_id: str) -> Coroutine[Any, Any, StreamingHttpResponse]:
        who = get_caller(request)
        job = get_job(who.organisation, job_id)
        after = request.headers.get(LAST_ID, "0")
        if not after.isascii() or not after.isdigit():
            raise UserError(
                "invalid_cursor",
                f"'{LAST_ID}' must be the seq of the last event seen.",
                param=LAST_ID,
            )
        if _open_streams[who.organisation.pk] >= STREAMS_MAX:
            raise Throttled(_AGAIN_AFTER_S)
        standing = find_standing(request, self.scopes["GET"])
        return _respond(_Watcher(standing, job.pk), after=int(after[:18]))


async def _respond(watcher: _Watcher, *, after: int) -> StreamingHttpResponse:
    response = StreamingHttpResponse(
        _write_events(watcher, after), content_type="text/event-stream"
    )
    response["Cache-Control"] = "no-store"
    # Proxies gather what they do not know to be a stream.
    response["X-Accel-Buffering"] = "no"
    return response


@dataclass(frozen=True, slots=True)
class _Watcher:
    """Who follows which job."""

    standing: Standing
    job_id: str

    @property
    def organisation(self) -> Organisation:
        return self.standing.caller.organisation

    def read(self, after: int) -> _JobLook:
        """What happened after a ``seq``, and last where the job stands.

        Raises
        ------
        UserError
            Who follows may not any more.
        """
        self.standing.check(now=clock.now())
        job = get_job(self.organisation, self.job_id)
        found = [serialize_event(event) for event in read_events(job, after_seq=after)]
        if found and found[-1]["seq"] >= job.seq:
            found[-1] |= {"status": str(job.status), "progress": serialize_progress(job)}
        elif job.seq > after:
            found.append(_build_progress(job))
        return _JobLook(found, has_ended=not job.is_active)


def _build_progress(job: Job) -> dict[str, Any]:
    """Where a job stands, as ``publish_progress`` tells it, without what was measured before."""
    return {
        "type": "progress",
        "seq": job.seq,
        "job_id": job.pk,
        "status": str(job.status),
        **serialize_progress(job),
        "points": [],
        "log": [],
    }


@dataclass(frozen=True, slots=True)
class _JobLook:
    """What the database says of a job."""

    events: list[dict[str, Any]]
    has_ended: bool


async def _write_events(watcher: _Watcher, after: int) -> AsyncIterator[bytes]:
    organisation_id = watcher.organisation.pk
    if _open_streams[organisation_id] >= STREAMS_MAX:
        # Many came at once; their clients connect again and are refused.
        return
    _open_streams[organisation_id] += 1
    stopping = shutdown.expect()
    news = _News(f"job.{watcher.job_id}")
    try:
        await news.open()
        sent = after
        while not stopping.done():
            look = await run_in_thread(partial(watcher.read, sent))
            for event in look.events:
                sent = event["seq"]
                yield _write(event)
            if look.has_ended:
                yield b"event: end\ndata: {}\n\n"
                return
            looks_at = asyncio.get_running_loop().time() + LOOK_EVERY_S
            while (event := await news.wait(until=looks_at, unless=stopping)) is not None:
                if event["seq"] > sent + 1 or event["status"] not in Job.ACTIVE:
                    break
                if event["seq"] > sent:
                    sent = event["seq"]
                    yield _write(event)
            yield b": \n\n"
    except UserError:
        # The client connects again and then reads the reason.
        return
    finally:
        # Before anything that may be cut off.
        _open_streams[organisation_id] -= 1
        if not _open_streams[organisation_id]:
            del _open_streams[organisation_id]
        stopping.cancel()
        await news.close()


class _News:
    """Messages of a stream, while Redis brings them; without it, none."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._layer: Any = get_channel_layer()
        self._channel = ""
        self._next: asyncio.Future[Mapping[str, Any]] | None = None

    async def open(self) -> None:
        try:
            self._channel = await self._layer.new_channel()
            await self._layer.group_add(self._stream, self._channel)
        except (RedisError, OSError):
            log.warning("%s is followed without messages", self._stream, exc_info=True)
            self._channel = ""

    async def wait(self, *, until: float, unless: asyncio.Future[None]) -> Mapping[str, Any] | None:
        """The next event; ``None`` once it is ``until``, or ``unless`` is done.

        However many events wait: then the database is to be asked whether they may be sent.
        """
        left_s = until - asyncio.get_running_loop().time()
        if left_s <= 0:
            return None
        awaited: set[asyncio.Future[Any]] = {unless}
        if self._channel:
            awaited.add(self._expect())
        await asyncio.wait(awaited, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if self._next is None or not self._next.done():
            return None
        message, self._next = self._next.result(), None
        return message["event"]

    async def close(self) -> None:
        if not self._channel:
            return
        waiting = self._expect()
        waiting.cancel()
        with suppress(RedisError, OSError):
            await self._layer.group_discard(self._stream, self._channel)
        await asyncio.wait([waiting])

    def _expect(self) -> asyncio.Future[Mapping[str, Any]]:
        """The next message: one wait for it, since the layer takes a cancelled one for the end."""
        waiting = self._next or asyncio.ensure_future(self._layer.receive(self._channel))
        self._next = waiting
        return waiting


def _write(event: Mapping[str, Any]) -> bytes:
    data = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return f"id: {event['seq']}\nevent: {event['type']}\ndata: {data}\n\n".encode()
