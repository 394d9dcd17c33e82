"""Sends requests at a steady rate, whether or not answers come: an open-loop load.

Latency counts from the moment a request was due, so a server that stalls cannot
hide it by slowing the sender down.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    #: From when the request was due to the last byte of its answer.
    seconds: float
    #: When it was complete, from the start of the load.
    ended_s: float


async def send_at_rate(
    url: str,
    request: Callable[[int], bytes],
    *,
    rate: float,
    seconds: float,
    connections: int,
) -> list[Answer]:
    """Send ``rate`` requests a second over kept-alive connections."""
    parts = urlsplit(url)
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    gate = asyncio.Semaphore(connections)
    loop = asyncio.get_running_loop()
    started = 0.0
    answers: list[Answer] = []

    async def one(number: int, due: float) -> None:
        async with gate:
            # The server ends connections that were idle for long.
            while idle and idle[-1][0].at_eof():
                idle.pop()[1].close()
            reader, writer = (
                idle.pop() if idle else await asyncio.open_connection(parts.hostname, parts.port)
            )
            try:
                writer.write(request(number))
                status = await asyncio.wait_for(_read(reader), TIMEOUT_S)
                idle.append((reader, writer))
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                writer.close()
                status = 0
            ended = loop.time()
            answers.append(Answer(status=status, seconds=ended - due, ended_s=ended - started))

    tasks = []
    with _no_pauses():
        started = loop.time()
        for number in range(int(rate * seconds)):
            due = started + number / rate
            delay = due - loop.time()
            if delay > 0:
                await asyncio.sleep(delay)
            tasks.append(asyncio.create_task(one(number, due)))
        await asyncio.gather(*tasks)
    for _, writer in idle:
        writer.close()
    return answers


@contextmanager
def _no_pauses() -> Iterator[None]:
    """Who measures does not stop to look for garbage: it took the measured 0.2 s at a time."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def _read(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    length = next(
        int(line.partition(":")[2]) for line in lines if line.lower().startswith("content-length:")
    )
    await reader.readexactly(length)
    return int(lines[0].split(" ")[1])
