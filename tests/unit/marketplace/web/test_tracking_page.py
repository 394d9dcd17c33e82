"""The page where an organisation connects Weights & Biases."""

from __future__ import annotations

import pytest
from django.test import Client

from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.common import clock
from marketplace.tracking.models import TrackedRun, TrackingKey, TrackingService
from marketplace.tracking.services import set_tracking_key
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.pages import read_text

pytestmark = pytest.mark.django_db
KEY = "k" * 40


@pytest.fixture
def owner():
    return builders.organisation(name="Northwind Labs", usd="10")


@pytest.fixture
def client(owner):
    signed_in = Client()
    signed_in.force_login(builders.owner_of(owner))
    return signed_in


def test_a_key_is_stored_and_deleted_and_stands_on_no_page(client, owner):
    stored = client.post("/settings/tracking", {"service": "wandb", "key": KEY}, follow=True)
    assert "The key is stored." in stored.content.decode()
    assert KEY not in stored.content.decode()
    assert TrackingKey.objects.get().organisation_id == owner.pk
    refused = client.post("/settings/tracking", {"service": "wandb", "key": "short"})
    assert (refused.status_code, "20 characters or more" in refused.content.decode()) == (400, True)
    client.post("/settings/tracking/wandb/forget")
    assert not TrackingKey.objects.exists()


def test_runs_show_how_far_they_are_and_why_they_stopped(client, owner):
    zone = market.zone()
    market.node(zone)
    bid = market.bid(owner, zone)
    decide_pending_bids(zone=zone, now=NOW)
    set_tracking_key(
        organisation=owner,
        service=TrackingService.WANDB,
        key=KEY,
        set_by=builders.owner_of(owner),
        now=clock.now(),
    )
    run = TrackedRun.objects.create(
        bid_id=bid.pk,
        service=TrackingService.WANDB,
        organisation=owner,
        project="support",
        url="https://wandb.example/team/support/runs/1",
        sent_step=12,
        created_at=clock.now(),
    )
    page = read_text(client.get("/settings/tracking"))
    assert "To step 12" in page
    assert "support" in page
    TrackedRun.objects.filter(pk=run.pk).update(reason="No such project.", ended_at=clock.now())
    page = read_text(client.get("/settings/tracking"))
    assert "Stopped" in page
    assert "No such project." in page
