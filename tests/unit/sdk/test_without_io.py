"""What the SDK decides without a market: retries, deadlines, events, and what is drawn."""

from __future__ import annotations

import asyncio
import io
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest
from finetender import AsyncClient, Client
from finetender.calls import TRIES, Answer, Call, NoAnswer, Pause, send
from finetender.deadlines import write_deadline
from finetender.errors import (
    BidRefusedError,
    BusyError,
    ConflictError,
    NoFundsError,
    UnreachableError,
    UsageError,
    build_error,
)
from finetender.progress import draw_bar, draw_curve, follow_in_notebook, follow_in_terminal
from finetender.settings import Access, find_access, store_profile
from finetender.streams import ChatReader, JobFollower
from finetender.values import JobEvent

CALL = Call("GET", "/api/zones")


def carry_out(*came: Any) -> tuple[list[float], Answer]:
    """The waits between the tries, and the answer that was taken."""
    operation, waits = send(CALL), []
    answers = iter(came)
    step = next(operation)
    while True:
        if isinstance(step, Pause):
            waits.append(step.seconds)
            step = operation.send(None)
            continue
        assert step is CALL
        try:
            step = operation.send(next(answers))
        except StopIteration as end:
            assert next(answers, None) is None
            return waits, end.value


def answered(status: int, body: dict[str, Any] | None = None, **headers: str) -> Answer:
    return Answer(status, headers, body or {})


def test_what_may_pass_is_sent_again_after_the_wait_that_is_asked_for():
    good = answered(200, {"ok": True})
    busy = Answer(429, {"retry-after": "7"}, {})
    assert carry_out(good) == ([], good)
    assert carry_out(busy, good) == ([7.0], good)
    waits, found = carry_out(NoAnswer("refused"), answered(503), answered(502), good)
    assert (found, len(waits)) == (good, TRIES - 1)
    assert waits[0] < 2 * waits[2]
    assert carry_out(Answer(409, {"retry-after": "1"}, {"retry": True}), good) == ([1.0], good)


def test_what_another_try_would_not_change_is_raised_at_once():
    with pytest.raises(ConflictError):
        carry_out(answered(409, {"code": "job_ended"}))
    with pytest.raises(BidRefusedError) as lost:
        carry_out(answered(402, {"code": "bid_below_price", "posted_price": "1.25"}))
    assert str(lost.value.posted_price) == "1.25"
    with pytest.raises(BusyError):
        carry_out(*[answered(500)] * TRIES)
    with pytest.raises(UnreachableError, match="refused"):
        carry_out(*[NoAnswer("refused")] * TRIES)


def test_too_little_money_is_no_lost_bid_and_a_lost_one_names_the_soonest_deadline():
    poor = build_error(402, {"code": "insufficient_funds", "short_by": "0.50"})
    assert isinstance(poor, NoFundsError)
    assert (poor.short_by, poor.exit_code) == (Decimal("0.50"), 9)
    told = {"code": "no_window", "earliest_deadline": "2026-11-21T06:00:00Z"}
    lost = build_error(402, told | {"earliest_deadline_price": "1.25"})
    assert isinstance(lost, BidRefusedError)
    assert lost.earliest_deadline == datetime(2026, 11, 21, 6, tzinfo=UTC)
    assert lost.earliest_deadline_price == Decimal("1.25")


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("90m", "90m"),
        ("soon", "soon"),
        (timedelta(days=12), "1036800.000s"),
        (datetime(2026, 11, 21, 6, tzinfo=UTC), "2026-11-21T06:00:00+00:00"),
        ("2026-11-21T07:00:00+01:00", "2026-11-21T06:00:00+00:00"),
    ],
)
def test_a_time_from_now_is_left_to_the_markets_clock(given, sent):
    assert write_deadline(given) == sent


def test_events_come_once_and_in_order_whatever_the_connection_does():
    follower = JobFollower(after=3)

    def feed(*events: dict[str, Any]) -> list[int]:
        found = []
        for event in events:
            for line in (f"id: {event['seq']}", f"data: {json.dumps(event)}", ""):
                if (told := follower.read(line)) is not None:
                    found.append(told.seq)
        return found

    def event(seq: int) -> dict[str, Any]:
        return {"type": "event", "seq": seq, "kind": "started", "message": "on"}

    assert feed(event(3), event(4)) == [4]
    follower.read('data: {"type": "event", "seq"')
    follower.connect()
    assert follower.headers["Last-Event-ID"] == "4"
    assert feed(event(4), event(6)) == [6]
    assert follower.read(": ") is None
    assert not follower.is_done
    for line in ("event: end", "data: {}", ""):
        follower.read(line)
    assert follower.is_done


def test_words_come_as_written_and_an_error_in_between_is_raised():
    reader = ChatReader()

    def feed(text: str) -> str:
        return reader.read(f"data: {text}") + reader.read("")

    assert feed('{"choices": [{"delta": {"role": "assistant"}}]}') == ""
    assert feed('{"choices": [{"delta": {"content": "Grüße"}}]}') == "Grüße"
    assert feed('{"choices": [], "usage": {"completion_tokens": 1}}') == ""
    with pytest.raises(BusyError, match=r"No node\."):
        feed('{"error": {"code": "not_answered", "message": "No node."}}')
    assert (feed("[DONE]"), reader.is_done) == ("", True)


def test_progress_is_drawn_and_hostile_messages_steer_neither_terminal_nor_page():
    assert draw_bar(0.5, cells=4) == "██░░"
    assert (draw_curve([3, 2, 1]), draw_curve([])) == ("█▅▁", "")
    hostile = JobEvent.read(
        {
            "type": "event",
            "seq": 1,
            "kind": "succeeded",
            "message": "<b>\x1b[2J",
            "status": "succeeded",
            "progress": {"step": 1, "total_steps": 2, "train_loss": 1.5},
        }
    )
    plain = io.StringIO()
    follow_in_terminal(plain)(hostile)
    assert plain.getvalue() == "<b> [2J\n"
    shown: list[dict[str, str]] = []
    follow_in_notebook(lambda panel, **_: shown.append(panel))(hostile)
    [panel] = shown
    assert "&lt;b&gt;" in panel["text/html"]
    assert "50%  step 1/2  loss 1.500" in panel["text/html"]


def test_a_stored_key_is_for_its_own_market_and_nobody_else_reads_it(tmp_path, monkeypatch):
    for name in ("FINETENDER_URL", "FINETENDER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(UsageError):
        find_access()
    path = store_profile("default", Access("https://market.example", "ft_key"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert find_access() == Access("https://market.example", "ft_key")
    assert find_access("https://market.example/").api_key == "ft_key"
    with pytest.raises(UsageError):
        find_access("https://other.example")
    for url, key in (("ftp://x", "k"), ("https://x", "k\r\nHost: y")):
        with pytest.raises(UsageError):
            find_access(url, key)


def test_streams_from_a_market_that_is_not_there_fail_in_words(tmp_path):
    async def ask() -> None:
        async with AsyncClient(url="http://127.0.0.1:9", api_key="ft_x") as there:
            async for _ in there.chat("ft:job_1", "Hi"):
                pass

    with Client(url="http://127.0.0.1:9", api_key="ft_x") as market:
        with pytest.raises(UnreachableError, match="could not be reached"):
            market.download_transcript("zone", tmp_path / "log.jsonl")
        with pytest.raises(UnreachableError, match="could not be reached"):
            list(market.chat("zone", "Hi"))
    with pytest.raises(UnreachableError, match="could not be reached"):
        asyncio.run(ask())
    assert not list(tmp_path.iterdir())


def test_a_question_is_asked_again_until_its_answer_has_begun():
    busy = BusyError(503, {"detail": "busy"})
    reader = ChatReader()
    waits = [reader.note_refusal(busy) for _ in range(TRIES - 1)]
    assert waits == [0.5, 1.0, 2.0]
    with pytest.raises(BusyError):
        reader.note_refusal(busy)
    begun = ChatReader()
    begun.read('data: {"choices": [{"delta": {"content": "Hi"}}]}')
    with pytest.raises(BusyError):
        begun.note_refusal(busy)


def test_a_busy_market_is_asked_again(monkeypatch):
    answers = [
        httpx.Response(503, json={"error": {"message": "busy"}}),
        httpx.Response(200, text='data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n'),
    ]
    monkeypatch.setattr(ChatReader, "note_refusal", lambda *_: 0.0)
    with Client(url="http://market", api_key="ft_x") as market:
        market._http = httpx.Client(
            base_url="http://market", transport=httpx.MockTransport(lambda _: answers.pop(0))
        )
        assert list(market.chat("zone", "Hi")) == ["Hi"]
    assert answers == []
