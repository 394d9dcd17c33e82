"""The demo's bids: one that lost because the price rose is repeated at the new price."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast

import httpx
import pytest

from marketplace.embedded.__main__ import attempt
from marketplace.embedded.demo import api_client
from marketplace.embedded.demo.api_client import (
    BIDS_MORE,
    DemoFailed,
    place_bid,
    place_patient_bid,
)
from marketplace.embedded.house import House
from marketplace.embedded.servers import ServiceFailed

WORK = {"name": "one", "training": {"epochs": 1}, "within_s": 60.0}


def serve(
    prices: Sequence[str | None],
    decide: Callable[[float], bool],
    *,
    deadlines: list[datetime] | None = None,
) -> tuple[httpx.Client, list[float]]:
    """A market that quotes these prices in turn, and the bids that came.

    ``None`` is a quote without room; ``deadlines`` gets those that quotes were asked for.
    """
    prices, bids = list(prices), list[float]()
    deadlines = [] if deadlines is None else deadlines

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/api/datasets":
            return httpx.Response(201, json={"id": "ds-1", "name": "d", "rows": 1, "tokens": 2})
        if request.url.path == "/api/quotes":
            deadlines.append(datetime.fromisoformat(json.loads(request.content)["deadline"]))
            price = prices.pop(0)
            return httpx.Response(200, json={"posted_price": price, "reason_text": "No room."})
        bids.append(float(json.loads(request.content)["price"]))
        won = decide(bids[-1])
        decision = {
            "payment": "0.03",
            "plan": [],
            "finish_planned_at": "soon",
            "reason": None if won else "price",
            "reason_text": "too low",
        }
        status = "admitted" if won else "refused"
        bid = {"id": "bid-1", "status": status, "price": str(bids[-1]), "decision": decision}
        if won:
            return httpx.Response(201, json=bid)
        return httpx.Response(402, json={"code": "bid_below_price", "detail": "low", "bid": bid})

    transport = httpx.MockTransport(answer)
    return httpx.Client(base_url="http://market", transport=transport), bids


def test_a_bid_that_lost_to_a_risen_price_is_repeated_at_the_new_one():
    market, bids = serve(["0.01", "0.03"], lambda price: price > 0.05)
    told: list[str] = []
    with market:
        assert place_bid(market, "zone", **WORK, say=told.append)["status"] == "admitted"
    assert bids == [0.02, 0.06]
    assert "The price has risen since: once more" in told


def test_a_price_that_rises_for_ever_ends_the_demo_with_its_reason():
    market, bids = serve(["0.01"] * (BIDS_MORE + 1), lambda price: False)
    with market, pytest.raises(DemoFailed, match="refused: too low"):
        place_bid(market, "zone", **WORK, say=lambda words: None)
    assert bids == [0.02] * (BIDS_MORE + 1)


def test_a_sale_without_room_waits_and_asks_again_with_a_later_deadline(monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr(api_client.time, "sleep", waits.append)
    deadlines: list[datetime] = []
    market, bids = serve([None, None, "0.01"], lambda price: True, deadlines=deadlines)
    told: list[str] = []
    with market:
        assert place_patient_bid(market, "zone", **WORK, say=told.append)["status"] == "admitted"
    assert bids == [0.02]
    assert waits == [api_client.ROOM_EVERY_S] * 2
    first, second, third = deadlines
    assert (second - first).total_seconds() > 10
    assert (third - second).total_seconds() > 10
    # Once, as long as the reason stays.
    assert sum(words.startswith("No quote: No room. Asking again until") for words in told) == 1


def test_a_bid_without_room_that_is_not_patient_says_so_at_once():
    market, bids = serve([None], lambda price: True)
    with market, pytest.raises(DemoFailed, match="No quote: No room"):
        place_bid(market, "zone", **WORK, say=lambda words: None)
    assert bids == []


def test_a_sale_for_which_there_is_never_room_ends_with_its_reason(monkeypatch):
    monkeypatch.setattr(api_client, "ROOM_WITHIN_S", 0.0)
    market, bids = serve([None], lambda price: True)
    with market, pytest.raises(DemoFailed, match="No quote: No room"):
        place_patient_bid(market, "zone", **WORK, say=lambda words: None)
    assert bids == []


@dataclass
class StandInHouse:
    """Its processes are up, or one of them is not."""

    is_up: bool = True

    @property
    def stack(self) -> StandInHouse:
        return self

    def check(self) -> None:
        if not self.is_up:
            raise ServiceFailed("web does not stay up")


@pytest.mark.parametrize(
    "error",
    [
        DemoFailed("refused"),
        httpx.ConnectError("refused"),
        # A command of the market's that the demo ran, and what no one thought of.
        ServiceFailed("refused"),
        ValueError("refused"),
    ],
)
def test_the_site_outlives_a_sale_of_the_demo_that_fails(error):
    told: list[str] = []

    def fail() -> None:
        raise error

    attempt(cast("House", StandInHouse()), fail, say=told.append)
    assert told == ["This part of the demo failed, the site stays up: refused"]


def test_a_process_of_the_house_that_does_not_stay_up_ends_the_demo():
    def fail() -> None:
        raise httpx.ConnectError("refused")

    with pytest.raises(ServiceFailed):
        attempt(cast("House", StandInHouse(is_up=False)), fail, say=lambda words: None)
