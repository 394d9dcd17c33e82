"""Warm starts on the pages: the quote, consents, lineage, the receipt and royalties."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
import time_machine

from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid
from marketplace.auction.settlement import settle_finished
from marketplace.fleet.models import Node
from marketplace.jobs.models import Job
from marketplace.payments.models import Earning
from marketplace.warm.consents import set_consent
from marketplace.warm.models import DatasetConsent, Donor, Offer
from marketplace.warm.selectors import get_consent
from tests import builders
from tests.builders import NOW
from tests.pages import read_page
from tests.unit.marketplace.web.conftest import Site
from tests.warm_builders import (
    LATER,
    answer,
    bid_warm,
    data_of,
    ended,
    finished,
    quote,
)

pytestmark = pytest.mark.django_db


def later() -> time_machine.travel:
    """The time when earlier jobs have ended; the node is still there."""
    Node.objects.update(last_heartbeat_at=LATER)
    return time_machine.travel(LATER, tick=False)


def test_the_quote_says_how_much_less_a_warm_start_costs_and_the_form_bids_for_it(
    site: Site,
) -> None:
    data = data_of(site.organisation, site.zone)
    earlier = finished(site.organisation, site.zone, data=data)
    with later():
        form = site.bid_form(
            dataset=data.pk, epochs="3", alpha="16", do="check", sequence_length="128"
        )
        shown = site.client.post("/bids/new", form | {"deadline": "2026-03-02T09:04:00"})
        page = read_page(shown)
        assert "About 67 % less with a warm start from your own earlier adapter." in page
        assert "Never above the price without it, for an adapter at least as good." in page
        assert "Adapters of your own are used without asking you" in page
        offer = Offer.objects.get()
        cold = read_page(site.client.post("/bids/new", form | {"fresh": "on"}))
        assert "less with a warm start" not in cold
        site.client.post(
            "/bids/new",
            form | {"do": "place", "offer": offer.pk, "deadline": "2026-03-02T09:04:00"},
        )
        bid = Bid.objects.latest("arrival")
        assert bid.terms.start.offer_id == offer.pk
        decide_pending_bids(zone=site.zone, now=LATER)
        job = Job.objects.get(bid_id=bid.pk)
        page = read_page(site.client.get(f"/jobs/{job.pk}"))
        assert "Begins warm, with an earlier adapter of yours, and was sold 4 steps." in page
        assert "The warm start saved $0.20: without it the price was $0.30." in page
        assert f'href="/jobs/{earlier.pk}"' in page
        receipt = read_page(site.client.get(f"/jobs/{job.pk}/receipt"))
        assert "The warm start saved $0.20" in receipt


def test_consents_are_given_and_withdrawn_on_the_pages_of_data_sets_and_adapters(
    site: Site,
) -> None:
    page = read_page(site.client.get("/datasets"))
    assert "My jobs may begin with adapters that others give" in page
    site.client.post("/datasets/consent", {"gives_adapters": "on"})
    consent = get_consent(site.organisation)
    assert (consent.uses_donors, consent.gives_adapters) == (False, True)
    data = data_of(site.organisation, site.zone)
    site.client.post(f"/datasets/{data.pk}/consent", {"uses_donors": "yes", "gives_adapters": ""})
    said = DatasetConsent.objects.get()
    assert (said.uses_donors, said.gives_adapters) == (True, None)
    assert re.search(r'value="yes" selected', read_page(site.client.get(f"/datasets/{data.pk}")))
    job = finished(site.organisation, site.zone, data=data)
    with later():
        assert "you get a royalty for each" in read_page(site.client.get(f"/jobs/{job.pk}"))
        site.client.post(f"/jobs/{job.pk}/adapter/consent", {"give": "no"})
        assert Donor.objects.get().is_given is False
        assert "Share for a royalty" in read_page(site.client.get(f"/jobs/{job.pk}"))


@pytest.mark.parametrize(
    ("flaw", "words"),
    [
        ("builds_on_others", "It began with an adapter of somebody else"),
        ("has_memorised", "It has learnt some of its rows by heart"),
        ("did_harm", "Jobs of several organisations did worse with it"),
    ],
)
def test_the_page_of_an_adapter_that_cannot_be_given_says_why(
    site: Site, flaw: str, words: str
) -> None:
    job = finished(site.organisation, site.zone)
    Donor.objects.update(**{flaw: True})
    with later():
        page = read_page(site.client.get(f"/jobs/{job.pk}"))
    assert f"No job of others begins with this adapter. {words}" in page
    assert "Share for a royalty" not in page


def test_nobody_changes_what_others_allow(site: Site) -> None:
    other = builders.organisation(usd="50")
    data = data_of(other, site.zone)
    job = finished(other, site.zone, data=data)
    assert site.client.post(f"/datasets/{data.pk}/consent", {}).status_code == 404
    site.client.post(f"/jobs/{job.pk}/adapter/consent", {"give": "yes"})
    assert Donor.objects.get().is_given is None


def test_royalties_stand_in_the_wallet_and_on_the_page_of_the_adapter(site: Site) -> None:
    set_consent(organisation=site.organisation, uses_donors=False, gives_adapters=True, now=NOW)
    donor = finished(site.organisation, site.zone)
    taker = builders.organisation(usd="50")
    set_consent(organisation=taker, uses_donors=True, gives_adapters=False, now=NOW)
    data = data_of(taker, site.zone, word="letter")
    with later():
        quote(taker, site.zone, data)
        answer(site.node, 4.0, 0.4)
        _, job = bid_warm(taker, site.zone, data, quote(taker, site.zone, data))
        steps = job.start.steps
        ended(job, site.zone, step=steps, total_steps=steps, valid_loss_after=0.3)
        assert settle_finished(now=LATER + timedelta(seconds=60)) == 2
        earned = Earning.objects.get(kind="royalty").amount_micros
        assert "Royalties" in read_page(site.client.get("/wallet"))
        page = read_page(site.client.get(f"/jobs/{donor.pk}"))
        assert "1 job of others began with this adapter" in page
        assert job.pk not in page
        assert earned > 0


def test_the_owner_of_a_job_is_not_shown_whose_adapter_it_began_with(site: Site) -> None:
    giver = builders.organisation(name="Eastfield", usd="50")
    set_consent(organisation=giver, uses_donors=False, gives_adapters=True, now=NOW)
    donor = finished(giver, site.zone)
    set_consent(organisation=site.organisation, uses_donors=True, gives_adapters=False, now=NOW)
    data = data_of(site.organisation, site.zone, word="letter")
    with later():
        quote(site.organisation, site.zone, data)
        answer(site.node, 4.0, 0.4)
        offered = quote(site.organisation, site.zone, data)
        _, job = bid_warm(site.organisation, site.zone, data, offered)
        for tab in ("", "/config", "/receipt", "/events"):
            page = read_page(site.client.get(f"/jobs/{job.pk}{tab}"))
            assert "a given adapter" in page
            for secret in (giver.name, giver.pk, donor.pk, job.start.artifact_id):
                assert secret not in page
            assert str(job.start.target_loss) not in page
