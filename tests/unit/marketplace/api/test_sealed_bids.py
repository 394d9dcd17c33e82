"""Providers never see what bidders offered: no page and no answer that they can open tells it."""

from __future__ import annotations

import json
import re

import pytest
import time_machine
from django.core.cache import cache
from django.test import Client

from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid
from marketplace.fleet.providers import ensure_provider
from marketplace.jobs.models import Job, NodePlan
from marketplace.jobs.services import dispatch_slots
from marketplace.webhooks.models import WebhookMessage
from marketplace.webhooks.outbox import EVENT_TYPES
from marketplace.webhooks.services import create_endpoint
from tests import builders
from tests import market_builders as market
from tests.addresses import fill, list_operations, list_page_addresses
from tests.builders import NOW
from tests.pages import read_download

pytestmark = pytest.mark.django_db(transaction=True)

AMOUNT_MICROS = 7_654_321_987
#: The amount in micro-dollars, in dollars with any number of places, and rounded to a dollar.
AMOUNT = re.compile(r"7654321987|7,?654[.,]3|\$\s?7,?654\b|7\.65432e")


@pytest.fixture
def now():
    with time_machine.travel(NOW, tick=False):
        yield NOW


@pytest.fixture
def names(settings, tmp_path, now):
    """A provider's key and browser, and what addresses may name: the provider's and others'."""
    settings.MEDIA_ROOT = tmp_path
    settings.WEBHOOKS_PRIVATE = True
    settings.API_REQUESTS_PER_MINUTE = dict.fromkeys(settings.API_REQUESTS_PER_MINUTE, 10**6)
    cache.clear()
    zone = market.zone()
    person = builders.user()
    theirs = builders.organisation(owner=person, usd="1")
    node = market.node(zone, of=ensure_provider(organisation=theirs, now=now))
    create_endpoint(
        organisation=theirs,
        created_by=person,
        url="http://127.0.0.1:9/",
        events=list(EVENT_TYPES),
        now=now,
    )
    bidder = builders.organisation(usd="40000")
    won, lost = (
        market.bid(bidder, zone, price_micros=AMOUNT_MICROS, slots=slots, epochs=epochs)
        for slots, epochs in ((20, 1), (1, 50))
    )
    decide_pending_bids(zone=zone, now=now)
    waits = market.bid(bidder, zone, price_micros=AMOUNT_MICROS)
    job = Job.objects.get()
    dispatch_slots(now=market.slot_at(zone, job.cells[0][0]))
    refresh_zone(zone=zone, now=now)
    statuses = dict(Bid.objects.values_list("pk", "status"))
    assert [statuses[bid.pk] for bid in (won, lost, waits)] == ["admitted", "refused", "pending"]
    browser = Client(raise_request_exception=False)
    browser.force_login(person)
    _, secret = builders.api_key(theirs)
    return (
        browser,
        secret,
        {"node_id": node.pk, "zone_name": zone.name, "bid_id": won.pk, "job_id": job.pk},
    )


def read(answer) -> str:
    text = (
        read_download(answer).decode(errors="replace")
        if answer.streaming
        else answer.content.decode(errors="replace")
    )
    answer.close()
    return text


def test_no_page_of_a_provider_tells_what_a_bidder_offered(names):
    browser, _, named = names
    opened = 0
    for address in list_page_addresses():
        answer = browser.get(fill(address, lambda name: named.get(name, "x")))
        opened += answer.status_code == 200
        assert not AMOUNT.search(read(answer)), address
    # Otherwise nothing was looked at.
    assert opened > 20
    # The bidder's own page does show it, in a form that the search knows.
    bidder = Client()
    bidder.force_login(builders.owner_of(Job.objects.get().organisation))
    assert AMOUNT.search(read(bidder.get(f"/bids/{named['bid_id']}")))


def test_no_answer_of_the_api_tells_a_provider_what_a_bidder_offered(names):
    _, secret, named = names
    client = Client(headers={"Authorization": f"Bearer {secret}"})
    opened = 0
    for method, path in list_operations():
        address = fill(path, lambda name: named.get(name, "x"))
        # A body that is empty or wrong: what is told in the refusal counts as well.
        body = {} if method == "get" else {"data": {}, "content_type": "application/json"}
        answer = getattr(client, method)(address, **body)
        opened += answer.status_code == 200
        assert not AMOUNT.search(read(answer)), (method, path)
    assert opened > 10
    # The public log is among them, with entries of these bids.
    log = read(client.get(f"/api/market/{named['zone_name']}/transcript"))
    assert named["bid_id"] in log
    own = read(Client().get("/api/zones"))
    assert named["zone_name"] in own


def test_no_message_to_a_provider_tells_what_a_bidder_offered(names):
    plans = [json.dumps(plan.plan) for plan in NodePlan.objects.all()]
    # The node is given the job that was won.
    assert any(Job.objects.get().pk in plan for plan in plans)
    told = [*plans, *(message.body for message in WebhookMessage.objects.all())]
    assert not any(AMOUNT.search(text) for text in told)
