"""Quotes and bids that are not answered at once: asked for again until they are."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from finetender.calls import Answer, Call, Pause
from finetender.errors import BidRefusedError, BusyError, MarketError, NoFundsError, UsageError
from finetender.operations.bids import (
    ASK_AGAIN,
    PRICE_TRIES,
    get_quote,
    place_bid,
)

AT = "2026-03-02T09:00:00+00:00"
ZONE = {"name": "z", "base_model": "b", "slot_s": 10, "latest_deadline": "2027-01-01T00:00:00Z"}
ZONE["beat"] = "7.1"


def carry_out(
    operation: Generator[Any, Any, Any],
    answers: list[Any],
    bodies: list[Any] | None = None,
    keys: list[Any] | None = None,
) -> list[Any]:
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
                if bodies is not None:
                    bodies.append(step.json)
                if keys is not None:
                    keys.append(step.idempotency_key)
                found = {"data": [ZONE]} if step.path == "/api/zones" else answers.pop(0)
                status, body = found if isinstance(found, tuple) else (200, found)
                step = operation.send(Answer(status, {}, body))
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
        carry_out(place_bid("ds_1", price="0.1", deadline=AT, tells_price=True), answers)
    assert (lost.value.code, lost.value.reason) == ("bid_below_price", "price")
    assert str(lost.value.posted_price) == "0.200000"


def offered(status: str, **offer: Any) -> dict[str, Any]:
    told = {"price": "0.200000", "answer_by": AT, "takes": None, "lapse": None}
    decision = {
        "payment": "0.200000" if status == "admitted" else None,
        "reason": "price",
        "code": "bid_below_price",
        "reason_text": "You left it.",
        "posted_price": "0.200000",
    }
    return {
        "id": "bid_1",
        "status": status,
        "price": None,
        "offer": told | offer,
        "job_id": "job_1" if status == "admitted" else None,
        "deadline": AT,
        "decision": decision if status in ("admitted", "refused") else None,
    }


ZONES, ASK, ANSWER = (
    ("GET", "/api/zones"),
    ("POST", "/api/bids"),
    ("POST", "/api/bids/bid_1/answer"),
)
LOOK = ("GET", "/api/bids/bid_1")


def problem(status: int, **body: Any) -> tuple[int, dict[str, Any]]:
    return status, body


def test_a_price_below_the_limit_is_taken_and_the_limit_is_never_sent():
    bodies: list[Any] = []
    operation = place_bid("ds_1", price="0.3", deadline=AT)
    answers = [offered("pending"), offered("priced"), offered("pending"), offered("admitted")]
    *sent, bid = carry_out(operation, answers, bodies)
    assert sent == [ZONES, ASK, None, LOOK, ANSWER, None, LOOK]
    assert (str(bid.payment), bid.price, bid.job_id) == ("0.200000", None, "job_1")
    assert bodies[1]["beat"] == "7.1"
    assert {"take": True, "price": "0.200000"} in bodies
    assert "0.3" not in repr(bodies)


@pytest.mark.parametrize("limit", ["0.2", "0.1999999"])
def test_a_price_that_is_not_below_the_limit_is_left(limit: str):
    bodies: list[Any] = []
    answers = [offered("priced"), offered("refused", takes=False)]
    with pytest.raises(BidRefusedError) as lost:
        carry_out(place_bid("ds_1", price=limit, deadline=AT), answers, bodies)
    assert (lost.value.code, str(lost.value.posted_price)) == ("bid_below_price", "0.200000")
    assert bodies[-1] == {"take": False, "price": "0.200000"}


LAPSED = problem(409, code="price_lapsed", detail="Late.")
LATE = offered("cancelled", price=None, lapse="beat")


@pytest.mark.parametrize("lapsed", [[LAPSED], [offered("pending"), LATE]], ids=["at once", "later"])
def test_a_price_that_lapsed_untold_is_asked_for_again_under_another_key(lapsed: list[Any]):
    keys: list[Any] = []
    answers = [*lapsed, offered("priced"), offered("admitted")]
    operation = place_bid("ds_1", price="1", deadline=AT, idempotency_key="k")
    *sent, bid = carry_out(operation, answers, keys=keys)
    assert [each for each in sent if each in (ASK, ANSWER)] == [ASK, ASK, ANSWER]
    assert [key for key in keys if key] == ["k", "k.1"]
    assert bid.status == "admitted"


def test_one_that_lapses_each_time_is_given_up():
    with pytest.raises(BusyError, match="No price was told in time"):
        carry_out(place_bid("ds_1", price="1", deadline=AT), [LAPSED] * PRICE_TRIES)


ROSE = problem(402, code="bid_below_price", bid=offered("refused", takes=True))


def test_a_price_that_rose_is_asked_for_once_more():
    dearer = offered("priced", price="0.300000")
    sold = offered("admitted", price="0.300000")
    sold["decision"]["payment"] = "0.300000"
    answers = [offered("priced"), ROSE, dearer, sold]
    *_, bid = carry_out(place_bid("ds_1", price="1", deadline=AT), answers)
    assert str(bid.payment) == "0.300000"


@pytest.mark.parametrize("second", [ROSE, LAPSED], ids=["rose", "lapsed"])
@pytest.mark.parametrize("first", [ROSE, LAPSED], ids=["rose", "lapsed"])
def test_no_more_than_two_prices_are_answered(first: Any, second: Any):
    """Else whoever tells the prices could search for the limit by telling one after another."""
    answers = [offered("priced"), first, offered("priced", price="0.7"), second]
    bodies: list[Any] = []
    with pytest.raises(MarketError):
        carry_out(place_bid("ds_1", price="1", deadline=AT), answers, bodies)
    assert len([each for each in bodies if each and "take" in each]) == 2


def test_after_a_crash_the_same_key_finds_what_was_bought():
    """The first price had risen, the second was taken; nothing is bought a third time."""
    answers = [ROSE, offered("admitted")]
    *sent, bid = carry_out(place_bid("ds_1", price="1", deadline=AT, idempotency_key="k"), answers)
    assert (bid.status, [each for each in sent if each in (ASK, ANSWER)]) == (
        "admitted",
        [ASK, ASK],
    )


@pytest.mark.parametrize(("lapse", "code"), [("capacity", "no_capacity"), (None, "bid_cancelled")])
def test_one_without_a_plan_or_taken_back_is_not_asked_for_again(lapse: str | None, code: str):
    answers = [offered("pending"), offered("cancelled", price=None, lapse=lapse)]
    with pytest.raises(BidRefusedError) as lost:
        carry_out(place_bid("ds_1", price="1", deadline=AT), answers)
    assert (lost.value.code, lost.value.reason) == (code, lapse)


def test_a_charge_above_the_price_that_was_taken_is_an_error():
    charged = offered("admitted")
    charged["decision"]["payment"] = "5.00"
    with pytest.raises(MarketError, match="was charged where"):
        carry_out(place_bid("ds_1", price="9", deadline=AT), [offered("priced"), charged])


def test_a_price_that_the_wallet_lacks_says_what_is_short():
    short = problem(402, code="insufficient_funds", detail="Short.", short_by="0.10")
    with pytest.raises(NoFundsError) as poor:
        carry_out(place_bid("ds_1", price="1", deadline=AT), [offered("priced"), short])
    assert str(poor.value.short_by) == "0.10"


@pytest.mark.parametrize("price", ["much", "nan", "0", "-1", "inf", ""])
def test_what_is_no_price_is_refused_before_anything_is_asked(price: str):
    with pytest.raises(UsageError, match="is no price"):
        carry_out(place_bid("ds_1", price=price, deadline=AT), [])
