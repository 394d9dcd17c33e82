"""Sending requests to the whole ASGI application, as a web server's process gets them."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from marketplace.config.asgi import application


def run(talk: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
    """What ``talk`` says to the application, on an event loop of its own."""

    async def process() -> Any:
        transport = httpx.ASGITransport(app=application)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await talk(client)

    return asyncio.run(process())


@contextmanager
def serve() -> Iterator[str]:
    """The application behind a port of this machine, for clients that bring their own transport."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(application, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="web")
        thread.start()
        try:
            while not server.started:
                time.sleep(0.005)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)


def post_all(requests: Sequence[dict[str, Any]]) -> list[httpx.Response]:
    """Answers to ``POST /api/bids``, all sent at once, in their order."""

    async def talk(client: httpx.AsyncClient) -> list[httpx.Response]:
        return await asyncio.gather(*(client.post("/api/bids", **request) for request in requests))

    return run(talk)


def request_of(api: Any, body: Any, *, key: str | None = None, **headers: str) -> dict[str, Any]:
    """A bid's request as ``post_all`` takes it."""
    keyed = {"Idempotency-Key": key} if key is not None else {}
    return {"json": body, "headers": api.headers | keyed | headers}


class LeavingCaller:
    """Sends one bid and closes the connection before the answer."""

    def __init__(self, request: dict[str, Any]) -> None:
        body = json.dumps(request["json"]).encode()
        headers = request["headers"] | {
            "Host": "localhost",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
        }
        self._scope = {
            "type": "http",
            "method": "POST",
            "path": "/api/bids",
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._messages.put_nowait({"type": "http.request", "body": body, "more_body": False})

    async def send(self) -> None:
        """Until the application has noticed that the caller is gone."""

        async def drop(message: Any) -> None:
            raise AssertionError("the caller is gone")

        await application(self._scope, self._messages.get, drop)  # type: ignore[arg-type]

    def leave(self) -> None:
        self._messages.put_nowait({"type": "http.disconnect"})
