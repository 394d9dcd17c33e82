"""Quotes and bids that are not answered at once: asked for again until they are."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from finetender.calls import Answer, Call, Pause
from finetender.errors import BidRefusedError
from finetender.operations.bids import ASK_AGAIN, get_quote, place_bid

AT = "2026-03-02T09:00:00+00:00"
ZONE = {"name": "z", "base_model": "b", "slot_s": 10, "latest_deadline": "2027-01-01T00:00:00Z"}


def carry_out(operation: Generator[Any, Any, Any], answers: list[dict[str, Any]]) -> list[Any]:
    """What was sent, each pause as ``None``, and at the end the operation's result."""
    sent: list[Any] = []
    step = next(operation)
    while True:
        try:
            if isinstance(step, Pause):
                sent.append(None)
                step = operation.send(None)
            else:
                assert isinstance(step, Call)
                sent.append((step.method, step.path))
                body = {"data": [ZONE]} if step.path == "/api/zones" else answers.pop(0)
                step = operation.send(Answer(200, {}, body))
        except StopIteration as end:
            assert answers == []
            return [*sent, end.value]


def quoted(outlook: str, model: str | None = None, cold: str | None = None) -> dict[str, Any]:
    return {
        "zone": "z",
        "deadline": AT,
        "posted_price": "0.200000",
        "finish_at": None,
        "reason_text": None,
        "expires_at": None,
        "curve": [],
        "warm_start": {"outlook": outlook, "model": model, "cold_price": cold},
    }


def test_a_quote_waits_for_the_warm_start_that_a_node_looks_for():
    operation = get_quote("ds_1", deadline=AT, warm_start=True)
    offered = quoted("offered", "warm:1", "0.300000")
    *sent, quote = carry_out(operation, [quoted("asked"), quoted("asked"), offered])
    ask = ("POST", "/api/quotes")
    assert sent == [("GET", "/api/zones"), ask, None, ask, None, ask]
    assert (quote.model, str(quote.cold_price)) == ("warm:1", "0.300000")


def test_a_look_that_never_ends_leaves_the_quote_without_a_warm_start():
    operation = get_quote("ds_1", deadline=AT, warm_start=True)
    *_, quote = carry_out(operation, [quoted("asked")] * (ASK_AGAIN + 1))
    assert (quote.model, quote.cold_price) == (None, None)


def test_a_bid_refused_later_has_the_code_of_one_refused_at_once():
    decision = {
        "reason": "price",
        "code": "bid_below_price",
        "reason_text": "Too low.",
        "posted_price": "0.200000",
    }
    bid = {"id": "bid_1", "price": "0.1", "job_id": None, "deadline": AT, "decision": None}
    answers = [bid | {"status": "pending"}, bid | {"status": "refused", "decision": decision}]
    with pytest.raises(BidRefusedError) as lost:
        carry_out(place_bid("ds_1", price="0.1", deadline=AT), answers)
    assert (lost.value.code, lost.value.reason) == ("bid_below_price", "price")
    assert str(lost.value.posted_price) == "0.200000"
