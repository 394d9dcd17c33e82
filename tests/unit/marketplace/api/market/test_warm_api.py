"""A warm start over HTTP: quoted, bid for, followed; whose adapter it is stays unsaid."""

from __future__ import annotations

import pytest
import time_machine

from marketplace.api.answers import moment
from marketplace.auction.bidding import wait
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.fleet.slots import slot_ends_at
from marketplace.jobs.models import Job
from marketplace.warm.consents import set_adapter_consent, set_consent
from marketplace.warm.models import Donor, Offer
from tests import builders, job_builders
from tests import market_builders as market
from tests.builders import NOW
from tests.unit.marketplace.api.client import Api, assert_problem
from tests.warm_builders import LATER, TRAINING, answer, ask_others, finished, live_node, quote

#: What starts from the same donor have in common.
COPIED = (
    *("organisation", "zone", "dataset", "donor", "settings_hash", "kind", "likeness", "scale"),
    *("target_loss", "steps", "total_steps", "units", "cold_units", "royalty_micros", "made_at"),
    "expires_at",
)

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


def test_consents_are_given_and_withdrawn_by_api_for_all_for_data_and_for_an_adapter(owner):
    zone = market.zone()
    live_node(zone)
    api, stranger = Api(owner), Api(builders.organisation())
    reader = Api(owner, scopes=["jobs:read"])
    donor = finished(owner, zone)
    paths = {
        "all": "/api/warm-starts/consent",
        "data": f"/api/datasets/{donor.dataset_id}/consent",
        "adapter": f"/api/jobs/{donor.pk}/adapter/consent",
    }
    nothing = {
        "object": "warm_start_consent",
        "uses_donors": False,
        "gives_adapters": False,
        "changed_at": None,
    }
    assert api.get(paths["all"]).json() == nothing
    said = {"uses_donors": True, "gives_adapters": True}
    assert_problem(reader.put(paths["all"], said), 403, "missing_scope")
    assert_problem(api.put(paths["all"], {"uses_donors": True}), 400, "invalid_request")
    assert api.get(paths["all"]).json() == nothing
    assert api.put(paths["all"], said).json().items() > said.items()
    assert api.get(paths["adapter"]).json() == {
        "object": "adapter_consent",
        "job_id": donor.pk,
        "is_given": None,
        "is_offered": True,
        "has_memorised": False,
        "builds_on_others": False,
        "did_harm": False,
    }
    # The nearest word counts.
    own = {"uses_donors": None, "gives_adapters": False}
    assert api.put(paths["data"], own).json() == {
        "object": "dataset_consent",
        "dataset_id": donor.dataset_id,
        **own,
    }
    assert api.get(paths["adapter"]).json()["is_offered"] is False
    assert api.put(paths["adapter"], {"is_given": True}).json()["is_offered"] is True
    assert api.put(paths["adapter"], {"is_given": None}).json()["is_offered"] is False
    # Nothing of it is anybody else's to see or to say.
    assert_problem(stranger.get(paths["adapter"]), 404, "unknown_job")
    assert_problem(stranger.put(paths["adapter"], {"is_given": True}), 404, "unknown_job")
    assert_problem(stranger.put(paths["data"], own), 404, "unknown_dataset")
    assert Donor.objects.get().is_given is None


def test_an_adapter_that_says_rows_by_heart_is_given_and_not_offered(owner):
    zone = market.zone()
    live_node(zone)
    donor = finished(owner, zone, memorised=100)
    path = f"/api/jobs/{donor.pk}/adapter/consent"
    shown = Api(owner).put(path, {"is_given": True}).json()
    assert (shown["is_given"], shown["is_offered"], shown["has_memorised"]) == (True, False, True)
    # A job without an adapter has none to give.
    job = job_builders.job(zone, (90, market.node(zone)), organisation=owner)
    path = f"/api/jobs/{job.pk}/adapter/consent"
    assert_problem(Api(owner).put(path, {"is_given": True}), 404, "unknown_donor")


def test_royalties_are_paged_and_added_up_and_name_no_other(owner, giver):
    zone = market.zone()
    node = live_node(zone)
    donor, data = ask_others(owner, zone, giver)
    answer(node, 4.0, 0.4)
    quote(owner, zone, data)
    offer = Offer.objects.first()
    assert offer is not None
    later = [
        Offer.objects.create(
            **{name: getattr(offer, name) for name in COPIED},
            royalty_paid_micros=paid,
            measured_at=LATER,
        )
        for paid in (3_000, 0, 4_500)
    ]
    api = Api(giver)
    page = api.get("/api/royalties?limit=1").json()
    assert (page["total"], page["has_more"]) == ("0.007500", True)
    assert page["data"] == [
        {
            "id": later[2].pk,
            "job_id": donor.pk,
            "adapter": donor.name,
            "royalty": "0.004500",
            "ended_at": moment(LATER),
        }
    ]
    rest = api.get(f"/api/royalties?limit=1&after={later[2].pk}").json()
    assert [one["royalty"] for one in rest["data"]] == ["0.003000"]
    assert Api(owner).get("/api/royalties").json()["data"] == []
    assert_problem(Api(giver, scopes=["jobs:read"]).get("/api/royalties"), 403, "missing_scope")
