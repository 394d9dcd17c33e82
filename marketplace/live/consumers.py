"""Websockets: a snapshot, then every later event in order.

The group is joined before the snapshot is read. An event that arrives in between is sent after the
snapshot, or dropped if the snapshot holds it already. Channels runs a consumer's handlers one after
the other, which is all the locking this needs. A message Redis lost costs nothing: the browser sees
the gap and asks for a snapshot, and each of its pings compares numbers with the database.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, cast

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer

from marketplace.accounts.api_keys import authenticate_api_keys
from marketplace.accounts.models import ApiKey, Scope, User
from marketplace.accounts.policy import RIGHT_BY_SCOPE
from marketplace.accounts.selectors import find_session_user
from marketplace.common import clock
from marketplace.common.client_address import find_websocket_address, group_address
from marketplace.common.errors import UserError
from marketplace.live import snapshots

#: Websocket close codes: the HTTP status they stand for, plus 4000.
CLOSE_OFFSET = 4000
#: Websockets that one address may hold open, in each process of the web server.
SOCKETS_PER_ADDRESS = 200
#: Snapshots and pings that one websocket may send at once, and after how long each is due again.
SNAPSHOTS_AT_ONCE, SNAPSHOT_EVERY_S = 5, 1.0
#: How long somebody who signed out, or left the organisation, may still be sent events.
CHECK_EVERY_S = 10.0

_open_sockets: Counter[str] = Counter()


class StreamConsumer(AsyncJsonWebsocketConsumer):
    """One browser that follows one stream."""

    #: Who may follow, and what a key needs, as ``config.routes.Route`` has them.
    audience: str
    scope_of_key: str = ""
    stream: str
    snapshot: Callable[[], dict[str, Any]]
    stream_seq: Callable[[], int]
    #: Of the last message sent; nothing older or equal is sent again.
    sent = -1
    #: Times of the event loop: of the next question that is answered without a wait, and of the
    #: latest check of who follows.
    snapshot_due_at = 0.0
    checked_at = 0.0
    counted_as: str | None = None

    @property
    def address(self) -> dict[str, str]:
        """What the websocket's address names."""
        return cast(dict[str, Any], self.scope)["url_route"]["kwargs"]

    def follow(self) -> None:
        """Set ``stream``, ``snapshot`` and ``stream_seq`` from the address."""
        raise LookupError("a consumer names its stream")

    def check_watcher(self) -> None:
        """Refuse who may not follow any more.

        Raises
        ------
        UserError
        """

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Also where a handler failed: it would else stay in its group for good.
            await self._leave()

    async def connect(self) -> None:
        self.follow()
        address = group_address(find_websocket_address(cast(dict[str, Any], self.scope)))
        if _open_sockets[address] >= SOCKETS_PER_ADDRESS:
            await self.close(code=CLOSE_OFFSET + HTTPStatus.TOO_MANY_REQUESTS)
            return
        self.counted_as = address
        _open_sockets[address] += 1
        await self.channel_layer.group_add(self.stream, self.channel_name)
        await self.accept()
        await self.send_snapshot()

    async def _leave(self) -> None:
        if self.counted_as is None:
            return
        _open_sockets[self.counted_as] -= 1
        if not _open_sockets[self.counted_as]:
            del _open_sockets[self.counted_as]
        await self.channel_layer.group_discard(self.stream, self.channel_name)

    async def receive(
        self, text_data: str | None = None, bytes_data: bytes | None = None, **kwargs: Any
    ) -> None:
        """Take text; bytes say nothing here."""
        if text_data:
            await super().receive(text_data, **kwargs)

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        """``snapshot`` asks for a fresh one; ``ping`` for one only if something was missed."""
        asked = content.get("type") if isinstance(content, dict) else None
        if asked in ("snapshot", "ping"):
            await self._wait_for_turn()
        if asked == "snapshot":
            await self.send_snapshot()
        elif asked == "ping":
            if not await self._may_follow():
                return
            if await database_sync_to_async(self.stream_seq)() > self.sent:
                await self.send_snapshot()
            else:
                await self.send_json({"type": "pong", "seq": self.sent})

    async def _wait_for_turn(self) -> None:
        """Handlers run one after the other, so a wait slows down this websocket only."""
        now = asyncio.get_running_loop().time()
        spare_s = (SNAPSHOTS_AT_ONCE - 1) * SNAPSHOT_EVERY_S
        self.snapshot_due_at = max(self.snapshot_due_at, now - spare_s)
        wait_s = self.snapshot_due_at - now
        self.snapshot_due_at += SNAPSHOT_EVERY_S
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    async def _may_follow(self) -> bool:
        """Whether who follows still may; asked again every few seconds."""
        now = asyncio.get_running_loop().time()
        if now - self.checked_at < CHECK_EVERY_S:
            return True
        try:
            await database_sync_to_async(self.check_watcher)()
        except UserError as refusal:
            await self.close(code=CLOSE_OFFSET + refusal.status)
            return False
        self.checked_at = now
        return True

    async def send_snapshot(self) -> None:
        try:
            value = await database_sync_to_async(self.snapshot)()
        except UserError as refusal:
            await self.close(code=CLOSE_OFFSET + refusal.status)
            return
        self.sent = value["seq"]
        self.checked_at = asyncio.get_running_loop().time()
        await self.send_json(value)

    async def stream_event(self, message: dict[str, Any]) -> None:
        event = message["event"]
        if event["seq"] <= self.sent or not await self._may_follow():
            return
        # After a gap the event goes out as it is: the browser sees the gap and asks.
        self.sent = event["seq"]
        await self.send_json(event)

    @classmethod
    async def decode_json(cls, text_data: str) -> Any:
        try:
            return await super().decode_json(text_data)
        except (ValueError, RecursionError):
            return None


class JobConsumer(StreamConsumer):
    audience, scope_of_key = RIGHT_BY_SCOPE[Scope.JOBS_READ], Scope.JOBS_READ

    def follow(self) -> None:
        job_id = self.address["job_id"]
        self.job_id = job_id
        self.stream = f"job.{job_id}"
        self.snapshot = self._load_snapshot
        self.stream_seq = partial(snapshots.find_job_seq, job_id=job_id)

    def check_watcher(self) -> None:
        snapshots.find_job_for(watcher=self._find_watcher(), job_id=self.job_id)

    def _load_snapshot(self) -> dict[str, Any]:
        return snapshots.load_job_snapshot(watcher=self._find_watcher(), job_id=self.job_id)

    def _find_watcher(self) -> User | ApiKey | None:
        """Who follows, by the key or the session as it is now: either may have ended since."""
        scope = cast(dict[str, Any], self.scope)
        authorization = dict(scope["headers"]).get(b"authorization")
        if authorization is not None:
            return _find_key(authorization.decode("latin-1"))
        session = scope.get("session")
        if session is None:
            return scope.get("user")
        return find_session_user(session.session_key)


def _find_key(authorization: str) -> ApiKey | None:
    """The live key of an ``Authorization`` header."""
    scheme, _, secret = authorization.partition(" ")
    if scheme.lower() != "bearer":
        return None
    return authenticate_api_keys(given=[secret], now=clock.now())[secret]


class MarketConsumer(StreamConsumer):
    audience = "public"

    def follow(self) -> None:
        zone_name = self.address["zone_name"]
        self.stream = f"market.{zone_name}"
        self.snapshot = partial(snapshots.load_market_snapshot, zone_name=zone_name)
        self.stream_seq = partial(snapshots.find_market_seq, zone_name=zone_name)
