"""Websockets: a snapshot, then every later event in order.

The group is joined before the snapshot is read, so an event of the moment in between waits behind
it and is dropped if the snapshot holds it already. Channels runs a consumer's handlers one after
the other, which is all the locking this needs. A message Redis lost costs nothing: the browser
sees the gap and asks for a snapshot, and each of its pings compares numbers with the database.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer

from marketplace.accounts.models import User
from marketplace.common.errors import UserError
from marketplace.live import snapshots

#: Websocket close codes: the HTTP status they stand for, plus 4000.
CLOSE_OFFSET = 4000


class StreamConsumer(AsyncJsonWebsocketConsumer):
    """One browser that follows one stream."""

    stream: str
    snapshot: Callable[[], dict[str, Any]]
    stream_seq: Callable[[], int]
    #: Of the last message sent; nothing older or equal is sent again.
    sent = -1

    @property
    def address(self) -> dict[str, str]:
        """What the websocket's address names."""
        return cast(dict[str, Any], self.scope)["url_route"]["kwargs"]

    def follow(self) -> None:
        """Set ``stream``, ``snapshot`` and ``stream_seq`` from the address."""
        raise LookupError("a consumer names its stream")

    async def connect(self) -> None:
        self.follow()
        await self.channel_layer.group_add(self.stream, self.channel_name)
        await self.accept()
        await self.send_snapshot()

    async def disconnect(self, code: int) -> None:
        await self.channel_layer.group_discard(self.stream, self.channel_name)

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        """``snapshot`` asks for a fresh one; ``ping`` for one only if something was missed."""
        asked = content.get("type") if isinstance(content, dict) else None
        if asked == "snapshot":
            await self.send_snapshot()
        elif asked == "ping":
            if await database_sync_to_async(self.stream_seq)() > self.sent:
                await self.send_snapshot()
            else:
                await self.send_json({"type": "pong", "seq": self.sent})

    async def send_snapshot(self) -> None:
        try:
            value = await database_sync_to_async(self.snapshot)()
        except UserError as refusal:
            await self.close(code=CLOSE_OFFSET + refusal.status)
            return
        self.sent = value["seq"]
        await self.send_json(value)

    async def stream_event(self, message: dict[str, Any]) -> None:
        event = message["event"]
        if event["seq"] <= self.sent:
            return
        # After a gap the event goes out as it is: the browser sees the gap and asks.
        self.sent = event["seq"]
        await self.send_json(event)

    @classmethod
    async def decode_json(cls, text_data: str) -> Any:
        try:
            return await super().decode_json(text_data)
        except ValueError:
            return None


class JobConsumer(StreamConsumer):
    def follow(self) -> None:
        job_id = self.address["job_id"]
        self.stream = f"job.{job_id}"
        self.snapshot = partial(
            snapshots.load_job_snapshot,
            user=cast(User | None, self.scope.get("user")),
            job_id=job_id,
        )
        self.stream_seq = partial(snapshots.find_job_seq, job_id=job_id)


class MarketConsumer(StreamConsumer):
    def follow(self) -> None:
        zone_name = self.address["zone_name"]
        self.stream = f"market.{zone_name}"
        self.snapshot = partial(snapshots.load_market_snapshot, zone_name=zone_name)
        self.stream_seq = partial(snapshots.find_market_seq, zone_name=zone_name)
