"""The express pages: prices by SLO, the answer, the bank and the operator's lane."""

from __future__ import annotations

import json
import re

import pytest

from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.express.answering import answer_requests
from marketplace.express.bank import get_sharing
from marketplace.express.models import ExpressLane, ExpressRequest, RequestStatus, Sharing
from marketplace.express.seat_autoscaler import keep_floor
from tests import builders
from tests.builders import NOW
from tests.pages import read_page

pytestmark = pytest.mark.django_db


@pytest.fixture
def lane(site):
    house = builders.organisation()
    builders.fund_wallet(house, usd="5000")
    made = ExpressLane.objects.create(
        zone=site.zone,
        organisation=house,
        seat_limit_micros=20_000_000,
        budget_micros_per_h=10**12,
        slo_max_s=150.0,
    )
    keep_floor(made, now=NOW)
    decide_pending_bids(zone=site.zone, now=NOW)
    keep_floor(made, now=NOW)
    return made


def test_without_a_lane_the_page_says_what_else_there_is(site):
    shown = read_page(site.client.get("/express"))
    assert "Express is closed now" in shown
    assert "Place a bid" in shown


def test_an_slo_is_chosen_by_its_price_and_answered(site, lane):
    shown = read_page(site.client.get("/express", {"epochs": "1"}))
    assert "Done within" in shown
    [slider] = re.findall(r'<input[^>]*name="slo_s"[^>]*>', shown)
    assert 'max="149"' in slider
    found = re.search(r'<script id="slos"[^>]*>(.*?)</script>', shown)
    assert found is not None
    slos = json.loads(found[1])
    prices = [one["price_micros"] for one in slos]
    assert prices == sorted(prices, reverse=True)
    assert prices[0] > prices[-1]
    # No seat is there before the floor's first slot.
    assert not slos[0]["is_certain"]
    form = {
        "zone": site.zone.name,
        "dataset": site.dataset.pk,
        "name": "quick",
        "initial_prompt": "random",
        "epochs": "1",
        "virtual_tokens": "auto",
        "target_loss": "auto",
        "slo_s": "140",
        "key": "one",
        "do": "place",
    }
    reply = site.client.post("/express", form)
    [asked] = ExpressRequest.objects.all()
    assert (reply.status_code, reply["Location"]) == (302, f"/express/{asked.pk}")
    # The floor begins two slots on: all it can say now is later or no.
    answer_requests(zone_id=site.zone.pk, now=asked.created_at)
    asked.refresh_from_db()
    assert asked.status != RequestStatus.PENDING
    assert "Place in the log" in read_page(site.client.get(f"/express/{asked.pk}"))


def test_an_slo_that_no_seat_keeps_is_refused_on_the_page(site, lane):
    form = {"zone": site.zone.name, "dataset": site.dataset.pk, "epochs": "1", "slo_s": "0.5"}
    reply = site.client.post("/express", form)
    assert reply.status_code == 400
    assert "The SLO is 0.5 s." in read_page(reply)
    assert not ExpressRequest.objects.exists()


def test_another_organisations_request_is_not_found(site, lane):
    assert site.client.get("/express/express_01j00000000000000000000000").status_code == 404


def test_consent_is_given_and_taken_back(site):
    assert "Prompt bank" in read_page(site.client.get("/express/bank"))
    site.client.post("/express/bank", {"sharing": "everybody"})
    assert get_sharing(site.organisation) == Sharing.EVERYBODY
    site.client.post("/express/bank", {"sharing": "whatever"})
    assert get_sharing(site.organisation) == Sharing.EVERYBODY


def test_an_operator_opens_a_lane_and_sees_its_figures(site, client):
    operator = builders.operator()
    builders.organisation(owner=operator)
    client.force_login(operator)
    form = {
        "zone": site.zone.name,
        "least_seats": "1",
        "most_seats": "2",
        "seat_limit": "1.50",
        "budget": "40",
        "slo_max_s": "120",
        "is_open": "on",
    }
    assert client.post("/operator/express", form).status_code == 302
    made = ExpressLane.objects.get()
    assert (made.seat_limit_micros, made.most_seats) == (1_500_000, 2)
    shown = read_page(client.get("/operator/express"))
    assert site.zone.name in shown
    assert client.post("/operator/express", form | {"most_seats": "0"}).status_code == 400


def test_the_form_of_a_lane_has_its_terms_so_that_saving_changes_nothing_else(site, lane, client):
    operator = builders.operator()
    builders.organisation(owner=operator)
    client.force_login(operator)
    shown = client.get(f"/operator/express?zone={site.zone.name}").context["form"].initial
    assert shown == {
        "zone": site.zone.name,
        "least_seats": 1,
        "most_seats": lane.most_seats,
        "seat_limit": "20",
        "budget": "1000000",
        "slo_max_s": 150.0,
        "verified_only": False,
        "is_open": True,
    }
    ExpressLane.objects.update(verified_only=True)
    shown = client.get(f"/operator/express?zone={site.zone.name}").context["form"].initial
    terms = {name: "on" if value is True else value for name, value in shown.items()}
    assert client.post("/operator/express", terms).status_code == 302
    lane.refresh_from_db()
    assert (lane.verified_only, lane.is_open, lane.slo_max_s) == (True, True, 150.0)
    unknown = client.get("/operator/express?zone=nowhere").context["form"].initial
    assert (unknown["zone"], unknown["most_seats"]) == ("nowhere", 4)


def test_only_operators_see_lanes(site):
    assert site.client.get("/operator/express").status_code in (403, 404)
