"""Sending requests to the whole ASGI application, as a web server's process gets them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx

from marketplace.api.market.entrance import BidEntrance
from marketplace.config.asgi import application

#: A process's own entrance; tests ask it for its desk.
entrance: BidEntrance = application.application_mapping["http"]


def run(talk: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
    """What ``talk`` says to a fresh process, on an event loop of its own."""

    async def process() -> Any:
        transport = httpx.ASGITransport(app=application)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            try:
                return await talk(client)
            finally:
                entrance.close()

    return asyncio.run(process())


def post_all(requests: Sequence[dict[str, Any]]) -> list[httpx.Response]:
    """Answers to ``POST /api/bids``, all sent at once, in their order."""

    async def talk(client: httpx.AsyncClient) -> list[httpx.Response]:
        return await asyncio.gather(*(client.post("/api/bids", **request) for request in requests))

    return run(talk)


def request_of(api: Any, body: Any, *, key: str | None = None, **headers: str) -> dict[str, Any]:
    """A bid's request as ``post_all`` takes it."""
    keyed = {"Idempotency-Key": key} if key is not None else {}
    return {"json": body, "headers": api.headers | keyed | headers}
