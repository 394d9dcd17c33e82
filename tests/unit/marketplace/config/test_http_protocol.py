"""Heads of requests that are too long, or never end, cost the web server one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from marketplace.config import http_protocol
from marketplace.config.http_protocol import HEAD_BYTES_MAX, BoundedHttpProtocol

GET = b"GET /x HTTP/1.1\r\nHost: here\r\n"


class Wire(asyncio.Transport):
    """What the protocol writes, and whether it has closed the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.is_closed = b"", False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def answer(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


def talk(say: Callable[[BoundedHttpProtocol], None]) -> Wire:
    """A connection on which something was said, once all of it is answered."""

    async def run() -> Wire:
        config = uvicorn.Config(answer, log_level="critical")
        config.load()
        wire = Wire()
        protocol = BoundedHttpProtocol(config=config, server_state=ServerState(), app_state={})
        protocol.connection_made(wire)
        say(protocol)
        for _ in range(20):
            await asyncio.sleep(0)
        is_closed = wire.is_closed
        protocol.connection_lost(None)
        wire.is_closed = is_closed
        return wire

    return asyncio.run(run())


def test_requests_come_whole_in_parts_and_one_after_another() -> None:
    def say(protocol: BoundedHttpProtocol) -> None:
        for byte in GET + b"\r\n":
            protocol.data_received(bytes([byte]))
        body = bytes(4 * HEAD_BYTES_MAX)
        length = str(len(body)).encode()
        post = b"POST /x HTTP/1.1\r\nHost: here\r\nContent-Length: " + length + b"\r\n\r\n"
        # A long body is no long head, whether a head follows it or not.
        protocol.data_received(post + body[:10])
        protocol.data_received(body[10:] + GET)
        protocol.data_received(b"\r\n")

    wire = talk(say)
    assert wire.written.count(b"HTTP/1.1 200") == 3
    assert not wire.is_closed


@pytest.mark.parametrize("line", [b"X-More: y\r\n", b"y" * 100])
def test_a_head_without_end_is_cut_off(line: bytes) -> None:
    sent = 0

    def say(protocol: BoundedHttpProtocol) -> None:
        nonlocal sent
        protocol.data_received(GET + b"X: ")
        while not protocol.transport.is_closing():
            protocol.data_received(line)
            sent += len(line)

    wire = talk(say)
    assert wire.is_closed
    assert not wire.written
    assert sent <= HEAD_BYTES_MAX + 2 * len(line)


@pytest.mark.parametrize("said", [b"", GET, GET + b"\r\n" + GET])
def test_a_head_that_never_ends_is_not_waited_for(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_WITHIN_S", 0.0)
    wire = talk(lambda protocol: protocol.data_received(said) if said else None)
    assert wire.is_closed


def test_an_answer_that_takes_long_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_WITHIN_S", 0.0)
    wire = talk(lambda protocol: protocol.data_received(GET + b"\r\n"))
    assert wire.written.startswith(b"HTTP/1.1 200")
    assert not wire.is_closed
