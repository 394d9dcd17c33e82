"""The demo's bids: one that lost because the price rose is repeated at the new price."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from marketplace.embedded.demo.api_client import BIDS_MORE, DemoFailed, place_bid

WORK = {"name": "one", "training": {"epochs": 1}, "within_s": 60.0}


def serve(prices: list[str], decide: Callable[[float], bool]) -> tuple[httpx.Client, list[float]]:
    """A market that quotes these prices in turn, and the bids that came."""
    bids: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/api/datasets":
            return httpx.Response(201, json={"id": "ds-1", "name": "d", "rows": 1, "tokens": 2})
        if request.url.path == "/api/quotes":
            return httpx.Response(200, json={"posted_price": prices.pop(0)})
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
