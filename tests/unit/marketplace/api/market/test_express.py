"""``/api/express``: prices by SLO, the lane's answer, and what is refused."""

from __future__ import annotations

import pytest

from marketplace.auction.bidding import wait
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.common import clock
from marketplace.express.answering import answer_requests
from marketplace.express.models import ExpressLane, ExpressRequest
from marketplace.express.seat_autoscaler import keep_floor
from tests import builders
from tests import market_builders as market
from tests.unit.marketplace.api.client import Api

pytestmark = pytest.mark.django_db


@pytest.fixture
def lane(zone, monkeypatch):
    monkeypatch.setattr(wait, "WAIT_S", 0.0)
    house = builders.organisation()
    builders.fund_wallet(house, usd="5000")
    made = ExpressLane.objects.create(
        zone=zone,
        organisation=house,
        seat_limit_micros=20_000_000,
        budget_micros_per_h=10**12,
        slo_max_s=150.0,
    )
    now = clock.now()
    keep_floor(made, now=now)
    decide_pending_bids(zone=zone, now=now)
    keep_floor(made, now=now)
    return made


def job(api, zone, **more):
    data = market.dataset(api.owner, zone, rows=20)
    return {"zone": zone.name, "dataset_id": data.pk, "training": {"epochs": 1}, **more}


def test_prices_fall_with_the_slo_and_the_answer_is_in_the_log(api, zone, lane):
    body = job(api, zone)
    quote = api.post("/api/express/quotes", body).json()
    prices = [float(one["price"]) for one in quote["prices"]]
    assert prices == sorted(prices, reverse=True)
    assert quote["prices"][0]["slo_s"] >= quote["least_slo_s"]

    asked = api.post("/api/express", body | {"slo_s": quote["longest_slo_s"]}, key="k")
    assert asked.status_code == 202
    again = api.post("/api/express", body | {"slo_s": quote["longest_slo_s"]}, key="k")
    assert again.json()["id"] == asked.json()["id"]
    answer_requests(zone_id=zone.pk, now=ExpressRequest.objects.get().created_at)
    found = api.get(asked["Location"]).json()
    assert found["status"] in ("admitted", "offered", "refused")
    assert found["position"] > 0
    assert Api(builders.organisation()).get(asked["Location"]).status_code == 404


@pytest.mark.parametrize(
    ("changed", "status", "code"),
    [
        ({"slo_s": 0.5}, 400, "invalid_slo"),
        ({"slo_s": 1e5}, 400, "invalid_slo"),
        ({"slo_s": -1}, 400, "invalid_request"),
        ({"slo_s": "soon"}, 400, "invalid_request"),
        ({"slo_s": 60, "adapter": {"kind": "lora"}}, 400, "not_prompt_tuning"),
        ({"slo_s": 60, "adapter": {"rank": 8}}, 400, "invalid_hyperparameter"),
        ({"slo_s": 60, "more": 1}, 400, "invalid_request"),
    ],
)
def test_a_request_that_no_lane_can_take_is_refused(api, zone, lane, changed, status, code):
    reply = api.post("/api/express", job(api, zone) | changed)
    assert (reply.status_code, reply.json()["code"]) == (status, code)
    assert not ExpressRequest.objects.exists()


def test_a_zone_without_a_lane_says_so(api, zone):
    reply = api.post("/api/express", job(api, zone, slo_s=60))
    assert (reply.status_code, reply.json()["code"]) == (409, "no_express_lane")
