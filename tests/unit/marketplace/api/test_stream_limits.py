"""How many event streams an organisation holds open, however they begin and end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from marketplace.api.market import job_stream
from marketplace.api.market.job_stream import STREAMS_MAX, _JobLook, _write_events

EVENT = {"seq": 1, "type": "event", "status": "running"}


class News:
    """Brings nothing; to close it takes long, or fails."""

    fails = False
    closes_s = 60.0

    def __init__(self, stream: str) -> None:
        self.stream = stream

    async def open(self) -> None:
        pass

    async def wait(self, **_: Any) -> None:
        await asyncio.sleep(60)

    async def close(self) -> None:
        if self.fails:
            raise ValueError
        await asyncio.sleep(self.closes_s)


@pytest.fixture(autouse=True)
def news(monkeypatch):
    monkeypatch.setattr(job_stream, "_News", News)

    async def look(read):
        return read()

    monkeypatch.setattr(job_stream, "run_in_thread", look)
    job_stream._open_streams.clear()
    return News


def stream() -> Any:
    watcher = SimpleNamespace(
        organisation=SimpleNamespace(pk="org_a"),
        job_id="job",
        read=lambda sent: _JobLook([EVENT] if not sent else [], False),
    )
    return _write_events(watcher, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("fails", [False, True])
def test_a_stream_that_is_cut_off_while_it_closes_gives_its_place_back(news, monkeypatch, fails):
    monkeypatch.setattr(news, "fails", fails)

    async def cut_twice() -> None:
        open_stream = stream()
        assert await anext(open_stream)
        assert job_stream._open_streams == {"org_a": 1}
        closing = asyncio.ensure_future(open_stream.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises((asyncio.CancelledError, ValueError)):
            await closing

    asyncio.run(cut_twice())
    assert not job_stream._open_streams


def test_streams_that_were_let_in_at_once_are_no_more_than_may_be_open(news, monkeypatch):
    monkeypatch.setattr(news, "closes_s", 0.0)

    async def begin_all() -> list[bytes]:
        given = [await anext(one, b"") for one in [stream() for _ in range(STREAMS_MAX + 5)]]
        assert job_stream._open_streams == {"org_a": STREAMS_MAX}
        return given

    given = asyncio.run(begin_all())
    assert sum(map(bool, given)) == STREAMS_MAX
