"""When a node sends the words that it writes."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

from workers.node import answerer
from workers.node.answerer import Answerer
from workers.protocol.generation import Written


def answerer_with(*written: Written | None) -> Answerer:
    unused: Any = None
    made = Answerer(node_id="n", runtime=unused, cache=unused, client=unused)
    for item in written:
        made._written.put(item)
    return made


def word(text: str, *, finish: str = "") -> Written:
    return Written("t", text=text, finish=finish)


def test_the_first_words_go_with_what_is_there_and_wait_for_nothing():
    made = answerer_with(word("b"))
    assert made._gather(word("a"), until=-math.inf) == [word("a"), word("b")]


def test_later_words_are_gathered_until_their_time(monkeypatch):
    moments = iter([0.0, 0.5, 1.0])
    monkeypatch.setattr(answerer, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    made = answerer_with(word("b"), word("c"))
    assert made._gather(word("a"), until=1.0) == [word("a"), word("b"), word("c")]
    assert list(moments) == []


def test_the_end_of_an_answer_waits_for_nothing_but_takes_along_what_is_there():
    made = answerer_with(word("b", finish="stop"), word("c"))
    hour_later = time.monotonic() + 3600
    found = made._gather(word("a"), until=hour_later)
    assert [item.text for item in found] == ["a", "b", "c"]


def test_what_was_written_before_the_close_is_sent():
    made = answerer_with(word("b"), None)
    hour_later = time.monotonic() + 3600
    assert made._gather(word("a"), until=hour_later) == [word("a"), word("b")]
