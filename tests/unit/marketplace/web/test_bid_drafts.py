"""A bid that was not placed waits on the server: the wallet, Back and another day lose nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
import time_machine
from django.test import Client

from marketplace.accounts.models import Membership, Role
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid
from marketplace.common import clock
from marketplace.web.current_organisation import CHOSEN
from marketplace.web.views import payments
from tests import builders
from tests.builders import NOW
from tests.unit.marketplace.web.conftest import Site

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def lane():
    def decide(*, bid: Bid) -> Bid:
        decide_pending_bids(zone=bid.zone, now=clock.now(), limit=10)
        bid.refresh_from_db()
        return bid

    with patch.object(payments, "wait_for_bid", decide):
        yield


def check(site: Site, **changed: Any) -> None:
    asked = site.bid_form(**{"do": "check", "price": "3.5", "name": "kept-name"} | changed)
    assert site.client.post("/bids/new", asked).status_code == 200


def read_form(client: Client, path: str = "/bids/new") -> dict[str, Any]:
    form = client.get(path).context["form"]
    return {name: form[name].value() for name in ("dataset", "price", "name", "epochs", "key")}


def test_what_was_filled_in_stands_there_after_a_way_to_the_wallet(site: Site) -> None:
    check(site)
    site.client.get("/wallet")
    kept = read_form(site.client)
    assert (kept["dataset"], kept["price"]) == (site.dataset.pk, "3.5")
    assert (kept["name"], kept["epochs"]) == ("kept-name", "1")
    # Another submission: the one before may have been placed.
    assert kept["key"] != "submission-1"
    page = site.client.get("/bids/new")
    assert page.context["quote"].price_micros is not None
    assert b"This is the bid that you did not place yet." in page.content


def test_a_placed_bid_leaves_no_draft_and_a_refused_form_does(site: Site) -> None:
    check(site)
    short = site.bid_form(price="5000", name="too-dear")
    assert site.client.post("/bids/new", short).status_code == 402
    assert read_form(site.client)["name"] == "too-dear"
    assert site.client.post("/bids/new", site.bid_form()).status_code == 302
    assert b"did not place yet" not in site.client.get("/bids/new").content
    assert read_form(site.client)["price"] in (None, "")


def test_an_address_that_asks_for_something_wins_and_one_begins_again(site: Site) -> None:
    check(site)
    assert read_form(site.client, f"/bids/new?dataset={site.dataset.pk}")["name"] != "kept-name"
    assert read_form(site.client)["name"] == "kept-name"
    # Back to an address that begins again would forget what was filled in since.
    assert site.client.get("/bids/new?fresh")["Location"] == "/bids/new"
    assert read_form(site.client)["name"] != "kept-name"


def test_a_draft_is_of_one_organisation_and_of_some_days(site: Site) -> None:
    check(site)
    other = builders.organisation()
    user = builders.owner_of(site.organisation)
    Membership.objects.create(organisation=other, user=user, role=Role.OWNER, created_at=NOW)

    def act_for(organisation: Any) -> None:
        session = site.client.session
        session[CHOSEN] = organisation.pk
        session.save()

    act_for(other)
    assert read_form(site.client)["name"] != "kept-name"
    act_for(site.organisation)
    assert read_form(site.client)["name"] == "kept-name"
    with time_machine.travel(NOW + timedelta(days=8), tick=False):
        assert read_form(site.client)["name"] != "kept-name"


def test_a_session_keeps_no_long_names_of_fields(site: Site) -> None:
    check(site, **{f"{k:03}" * 300: "" for k in range(25)})
    assert read_form(site.client)["name"] != "kept-name"


def test_a_draft_whose_deadline_is_past_still_shows_what_else_it_held(site: Site) -> None:
    check(site)
    with time_machine.travel(NOW + timedelta(hours=1), tick=False):
        kept = read_form(site.client)
    assert (kept["name"], kept["dataset"]) == ("kept-name", site.dataset.pk)
