"""A warm start over HTTP: quoted, bid for, followed; whose adapter it is stays unsaid."""

from __future__ import annotations

import pytest
import time_machine

from marketplace.auction.bidding import wait
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.fleet.slots import slot_ends_at
from marketplace.jobs.models import Job
from marketplace.warm.consents import set_adapter_consent, set_consent
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.unit.marketplace.api.client import Api, assert_problem
from tests.warm_builders import LATER, TRAINING, answer, ask_others, live_node

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


@pytest.fixture
def giver():
    organisation = builders.organisation(name="Eastfield", usd="50")
    set_consent(organisation=organisation, uses_donors=False, gives_adapters=True, now=NOW)
    return organisation


def body_of(zone, data, **more):
    terms = market.job_terms(**TRAINING)
    deadline = slot_ends_at(zone, 130).isoformat()
    return {"zone": zone.name, "dataset_id": data.pk, "deadline": deadline, **terms} | more


def test_a_quote_names_the_warm_start_and_a_bid_takes_it(owner, giver, monkeypatch):
    monkeypatch.setattr(wait, "WAIT_S", 0.0)
    zone = market.zone()
    node = live_node(zone)
    donor, data = ask_others(owner, zone, giver)
    api = Api(owner)
    with time_machine.travel(LATER, tick=False):
        asked = api.post("/api/quotes", body_of(zone, data, warm_start=True)).json()
        nothing = {"outlook": "asked", "model": None, "cold_price": None}
        assert (asked["warm_start"], asked["posted_price"]) == (nothing, "0.300000")
        answer(node, 4.0, 0.4)
        quote = api.post("/api/quotes", body_of(zone, data, warm_start=True)).json()
        warm = quote["warm_start"]
        assert (warm["outlook"], warm["cold_price"]) == ("offered", "0.300000")
        assert quote["posted_price"] < warm["cold_price"]
        wanted = {"name": "warm", "price": "1.00", "model": warm["model"]}
        placed = api.post("/api/bids", body_of(zone, data, **wanted)).json()
        decide_pending_bids(zone=zone, now=LATER)
        job = Job.objects.get(bid_id=placed["id"])
        shown = [api.get(f"/api/bids/{placed['id']}"), api.get(f"/api/jobs/{job.pk}")]
        assert shown[0].json()["decision"]["payment"] == quote["posted_price"]
        for one in shown:
            assert one.json()["start"] == {"kind": "donor", "model": None}
        shown += [
            api.get(f"/api/jobs/{job.pk}/events"),
            api.get(f"/v1/fine_tuning/jobs/{job.pk}"),
        ]
        for one in shown:
            assert one.status_code == 200, one.content
            text = one.content.decode()
            for secret in (donor.pk, giver.pk, giver.name, job.start.artifact_id):
                assert secret not in text
        # The offer served its one bid.
        again = api.post("/api/bids", body_of(zone, data, **wanted))
        assert_problem(again, 409, "offer_ended")


def test_a_bid_for_a_warm_start_withdrawn_since_the_quote_is_refused_and_costs_nothing(
    owner, giver, monkeypatch
):
    monkeypatch.setattr(wait, "WAIT_S", 0.0)
    zone = market.zone()
    node = live_node(zone)
    donor, data = ask_others(owner, zone, giver)
    api = Api(owner)
    with time_machine.travel(LATER, tick=False):
        answer(node, 4.0, 0.4)
        model = api.post("/api/quotes", body_of(zone, data, warm_start=True)).json()["warm_start"][
            "model"
        ]
        set_adapter_consent(organisation=giver, job_id=donor.pk, is_given=False, now=LATER)
        body = body_of(zone, data, name="warm", price="1.00", model=model)
        assert_problem(api.post("/api/bids", body), 409, "offer_ended")
        assert api.get("/api/bids").json()["data"] == []
        cold = api.post("/api/quotes", body_of(zone, data, warm_start=True)).json()
        assert cold["warm_start"]["model"] is None
        assert cold["posted_price"] == "0.300000"
