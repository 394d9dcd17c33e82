"""A sweep by its pages: quoted, placed, and each job followed."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid, Bundle
from marketplace.common import clock
from marketplace.jobs.models import Job
from marketplace.payments.selectors import get_wallet
from marketplace.web.views import bundles
from tests import market_builders
from tests.pages import read_page
from tests.unit.marketplace.web.conftest import Site

pytestmark = pytest.mark.django_db
FORM = {
    "name": "three seeds",
    "learning_rates": "0.001",
    "ranks": "8",
    "seeds": "1, 2, 3",
    "epochs": "1",
    "batch_size": "8",
    "deadline": "2026-03-02T09:05:00",
    "mode": "all",
    "price": "0.31",
    "key": "submission-1",
    "do": "place",
}


@pytest.fixture(autouse=True)
def lane():
    def decide(*, bid: Bid) -> Bid:
        decide_pending_bids(zone=bid.zone, now=clock.now(), limit=10)
        return bid

    with patch.object(bundles, "wait_for_bid", decide):
        yield


def test_a_sweep_is_quoted_in_all_and_for_each_without_script(site: Site) -> None:
    text = read_page(site.client.get("/bundles/new", FORM | {"do": "price"}))
    assert '<b class="num">$0.30</b> for 3 jobs' in text
    assert text.count("lr 0.001, rank 8, seed") == 3
    assert not Bid.objects.exists()


def test_a_sweep_that_is_placed_has_a_page_with_its_jobs(site: Site) -> None:
    first = site.client.post("/bundles/new", FORM)
    assert site.client.post("/bundles/new", FORM).headers["Location"] == first.headers["Location"]
    bundle = Bundle.objects.get()
    assert first.headers["Location"] == f"/bundles/{bundle.pk}"
    text = read_page(site.client.get(f"/bundles/{bundle.pk}"))
    assert "3 of 3 admitted" in text
    assert "$0.31 for all at most" in text
    assert "<dt>Paid</dt><dd>$0.30</dd>" in text
    for job in Job.objects.all():
        assert f'href="/jobs/{job.pk}"' in text
        page = read_page(site.client.get(f"/jobs/{job.pk}"))
        assert f'<a class="link" href="/bundles/{bundle.pk}">a bundle</a>' in page
        page = read_page(site.client.get(f"/bids/{job.bid_id}"))
        assert "The limit of the whole bundle decided whether its jobs won." in page
    assert get_wallet(organisation=site.organisation).available_micros == 99_700_000


def test_a_sweep_that_loses_says_why_and_what_all_would_have_cost(site: Site) -> None:
    site.client.post("/bundles/new", FORM | {"price": "0.3"})
    bundle = Bundle.objects.get()
    text = read_page(site.client.get(f"/bundles/{bundle.pk}"))
    assert "together cost more than the bundle" in text
    assert "<dt>Price of all</dt><dd>$0.30</dd>" in text
    bid = Bid.objects.first()
    assert bid is not None
    assert site.client.get(f"/bids/{bid.pk}").headers["Location"] == f"/bundles/{bundle.pk}"


def test_what_is_wrong_stands_beside_its_field(site: Site) -> None:
    for changed, words in (
        ({"seeds": "1, x"}, "Give numbers with commas between them."),
        ({"seeds": "1"}, "These values make 1 job; a bundle has 2 to 16."),
        ({"price": ""}, "price"),
        ({"ranks": "8, -1"}, "rank"),
    ):
        reply = site.client.post("/bundles/new", FORM | changed)
        assert reply.status_code == 400
        assert words in read_page(reply)
    assert not Bundle.objects.exists()


def test_a_sweep_of_others_is_not_found(site: Site) -> None:
    site.client.post("/bundles/new", FORM)
    Bundle.objects.update(organisation=site.node.provider.organisation)
    address = f"/bundles/{Bundle.objects.get().pk}"
    assert site.client.get(address).status_code == 404
    assert site.client.post(f"{address}/withdraw").status_code == 404


def test_all_jobs_of_a_sweep_are_measured_by_one_file(site: Site) -> None:
    held_out = market_builders.dataset(site.organisation, site.zone, texts=["one", "two"])
    data = {"dataset": site.dataset.pk, "validation": held_out.pk}
    site.client.post("/bundles/new", FORM | data | {"price": "5"})
    assert [bid.validation_dataset for bid in Bid.objects.all()] == [held_out] * 3
    assert {job.validation_dataset for job in Job.objects.all()} == {held_out}
    # The quote looks at it as well: rows that stand in both are refused before any bid.
    leaking = FORM | {"dataset": held_out.pk, "validation": held_out.pk, "do": "price"}
    reply = site.client.get("/bundles/new", leaking)
    assert "2 rows stand both in the training data" in read_page(reply)
