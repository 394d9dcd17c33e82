"""Bids that come at the same moment share their work; each is answered for itself."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from datetime import timedelta

import pytest
from django.core.cache import cache
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import OperationalError

from marketplace.accounts.api_keys import revoke_api_key
from marketplace.api.batching import Batcher
from marketplace.api.callers import KEYS_KEPT_S
from marketplace.api.market import asked_bids, bid_answers
from marketplace.api.market.asked_bids import AskedBid
from marketplace.auction.bidding import wait
from marketplace.auction.bidding.place import PlacedBid
from marketplace.auction.lane import wakeups
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid
from marketplace.auction.settlement import settle_finished
from marketplace.common import clock
from marketplace.common.db.notifications import NotificationListener
from marketplace.jobs.models import Job
from marketplace.jobs.services import cancel_job
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import Hold
from marketplace.payments.selectors import get_wallet
from tests import builders
from tests import market_builders as market
from tests.unit.marketplace.api.client import ROWS, Api, body_of
from tests.unit.marketplace.api.web_server import LeavingCaller, post_all, request_of, run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _no_counters():
    cache.clear()


@pytest.fixture
def first_batch(monkeypatch):
    """Keeps the first batch from being placed until ``size`` bids are there for the next one."""
    return FirstBatch(monkeypatch)


class FirstBatch:
    """The batches that are placed; the first one waits until those behind it are there."""

    def __init__(self, monkeypatch):
        self.sizes = []
        self.submitted = 0
        self._go_on = threading.Event()
        place, submit = bid_answers.place_bids, Batcher.submit

        def place_noted(*, asked, now):
            self.sizes.append(len(asked))
            if len(self.sizes) == 1:
                assert self._go_on.wait(60)
            return place(asked=asked, now=now)

        def submit_noted(batcher, item):
            future: Future = submit(batcher, item)
            self.submitted += isinstance(item, AskedBid)
            return future

        monkeypatch.setattr(bid_answers, "place_bids", place_noted)
        monkeypatch.setattr(Batcher, "submit", submit_noted)

    async def opened(self, client, opener):
        """The request whose batch is stopped, once it is."""
        sent = asyncio.create_task(client.post("/api/bids", **opener))
        while not self.sizes:
            await asyncio.sleep(0.001)
        return sent

    async def queued(self, sending):
        """The task of a request whose bid is in the queue, or that was refused before."""
        before = self.submitted
        sent = asyncio.create_task(sending)
        while self.submitted == before and not sent.done():
            await asyncio.sleep(0.001)
        return sent

    def go_on(self):
        self._go_on.set()

    def answers_behind(self, opener, requests):
        """Answers to requests that are one batch, in this order, behind the opener's."""

        async def talk(client):
            first = await self.opened(client, opener)
            sent = [await self.queued(client.post("/api/bids", **request)) for request in requests]
            self.go_on()
            await first
            return await asyncio.gather(*sent)

        return run(talk)


@pytest.fixture
def opener(zone):
    """A bid that is too late, so that nothing of it is stored."""
    other = Api(builders.organisation(usd="1"))
    return request_of(other, body_of(other, zone, deadline="2020-01-01T00:00:00Z"))


def test_batch_is_answered_each_for_itself(api, zone, lane, first_batch, opener):
    poor = Api(builders.organisation(usd="1"))
    rich = Api(builders.organisation(usd="10"))
    requests = [
        request_of(api, body_of(api, zone)),
        request_of(poor, body_of(poor, zone, price="1.01")),
        request_of(api, body_of(api, zone, price="NaN")),
        request_of(rich, body_of(rich, zone, price="0.01")),
        {"json": body_of(rich, zone), "headers": {"Authorization": "Bearer ft_wrong_key"}},
        request_of(rich, body_of(api, zone)),
        request_of(poor, body_of(poor, zone, price="1.00")),
    ]
    answers = first_batch.answers_behind(opener, requests)
    assert [answer.status_code for answer in answers] == [201, 402, 400, 402, 401, 404, 201]
    assert answers[1].json()["code"] == "insufficient_funds"
    assert answers[3].json()["code"] == "bid_below_price"
    assert answers[5].json()["code"] == "unknown_dataset"
    arrived = Bid.objects.order_by("arrival")
    assert [bid.price_micros for bid in arrived] == [5_000_000, 10_000, 1_000_000]
    assert get_wallet(organisation=poor.owner).available_micros == 900_000
    assert check_ledger().balanced


def test_bids_that_together_exceed_a_wallet_are_funded_in_order_of_arrival(
    api, zone, lane, first_batch, opener
):
    prices = ["6.00", "5.00", "4.00", "0.50"]
    requests = [request_of(api, body_of(api, zone, price=price)) for price in prices]
    answers = first_batch.answers_behind(opener, requests)
    assert [answer.status_code for answer in answers] == [201, 402, 201, 402]
    short = answers[1].json()
    assert (short["code"], short["short_by"]) == ("insufficient_funds", "1.000000")
    assert answers[3].json()["short_by"] == "0.500000"
    assert Bid.objects.count() == 2
    assert check_ledger().balanced


def test_bid_with_settings_that_no_node_takes_takes_no_other_along(
    api, zone, lane, first_batch, opener
):
    poison = body_of(api, zone, price="1.00")
    # No column of PostgreSQL holds this character.
    poison["adapter"] = poison["adapter"] | {"target_modules": ["a\0b"]}
    good = [body_of(api, zone, price="1.00") for _ in range(3)]
    requests = [request_of(api, body) for body in (good[0], poison, *good[1:])]
    answers = first_batch.answers_behind(opener, requests)
    assert [answer.status_code for answer in answers] == [201, 400, 201, 201]
    assert answers[1].json()["code"] == "invalid_hyperparameter"
    assert Bid.objects.count() == Hold.objects.count() == 3
    assert check_ledger().balanced


def test_same_key_in_one_batch_bids_once_and_answers_all_alike(
    api, zone, lane, first_batch, opener
):
    body = body_of(api, zone)
    answers = first_batch.answers_behind(opener, [request_of(api, body, key="k1")] * 5)
    assert {answer.status_code for answer in answers} == {201}
    assert [answer.json() for answer in answers] == [answers[0].json()] * 5
    assert ["Idempotent-Replayed" in answer.headers for answer in answers] == [False] + [True] * 4
    assert Bid.objects.count() == 1
    assert get_wallet(organisation=api.owner).available_micros == 9_900_000


def test_same_key_with_another_body_in_one_batch_is_a_conflict(
    api, zone, lane, first_batch, opener
):
    body = body_of(api, zone)
    other = body | {"price": "4.00"}
    requests = [request_of(api, item, key="k1") for item in (body, other)]
    answers = first_batch.answers_behind(opener, requests)
    assert [answer.status_code for answer in answers] == [201, 409]
    assert answers[1].json()["code"] == "idempotency_key_reused"
    assert answers[1].json()["bid_id"] == answers[0].json()["id"]
    assert Bid.objects.count() == 1


def test_key_of_a_bid_that_had_no_funds_is_free_for_the_next_in_the_batch(
    api, zone, lane, first_batch, opener
):
    body = body_of(api, zone, price="50.00")
    requests = [request_of(api, item, key="k1") for item in (body, body | {"price": "5.00"})]
    answers = first_batch.answers_behind(opener, requests)
    assert [answer.status_code for answer in answers] == [402, 201]
    assert Bid.objects.count() == 1


def test_request_sent_again_is_answered_the_same_after_the_money_went_back(api, zone, lane):
    body = body_of(api, zone)
    [first] = post_all([request_of(api, body, key="k1")])
    now = clock.now()
    cancel_job(job=Job.objects.get(), cancelled_by=builders.owner_of(api.owner), now=now)
    settle_finished(now=now)
    bid = Bid.objects.get()
    assert bid.refund_micros > 0
    [again] = post_all([request_of(api, body, key="k1")])
    assert (again.status_code, again.json()) == (201, first.json())
    assert api.get(f"/api/bids/{bid.pk}").json()["refunded"] != first.json()["refunded"]


def test_request_sent_again_finds_its_bid_after_the_zone_has_closed(api, zone, lane):
    body = body_of(api, zone)
    [first] = post_all([request_of(api, body, key="k1")])
    zone.is_open = False
    zone.save()
    [again, new] = post_all([request_of(api, body, key=key) for key in ("k1", "k2")])
    assert (again.status_code, again.json()) == (201, first.json())
    assert (new.status_code, new.json()["code"]) == (409, "zone_closed")


def test_limit_counts_each_request_of_a_batch(api, zone, lane, settings, first_batch, opener):
    settings.API_REQUESTS_PER_MINUTE = settings.API_REQUESTS_PER_MINUTE | {"bids": 2}
    other = Api(builders.organisation(usd="10"))
    requests = [request_of(api, body_of(api, zone, price="1.00")) for _ in range(4)]
    requests.append(request_of(other, body_of(other, zone)))
    answers = first_batch.answers_behind(opener, requests)
    assert [answer.status_code for answer in answers] == [201, 201, 429, 429, 201]
    assert answers[0].headers["RateLimit-Policy"] == '"bids";q=2;w=60'
    assert [answer.headers["RateLimit"].split(";")[1] for answer in answers] == [
        "r=1",
        "r=0",
        "r=0",
        "r=0",
        "r=1",
    ]
    assert 1 <= int(answers[2].headers["Retry-After"]) <= 61
    assert Bid.objects.count() == 3


def test_undecided_bid_is_accepted_with_where_to_look(api, zone, monkeypatch):
    monkeypatch.setattr(wait, "WAIT_S", 0.1)
    [answer] = post_all([request_of(api, body_of(api, zone), key="k1")])
    assert answer.status_code == 202
    bid = answer.json()
    assert (bid["status"], bid["decision"]) == ("pending", None)
    assert answer.headers["Location"] == f"/api/bids/{bid['id']}"
    assert answer.headers["Retry-After"] == "1"
    now = clock.now()
    decide_pending_bids(zone=zone, now=now)
    [again] = post_all([request_of(api, body_of(api, zone) | bid_terms(bid), key="k1")])
    assert again.status_code == 409  # another data set is another request
    assert Bid.objects.count() == 1


def bid_terms(bid):
    return {"price": bid["price"], "deadline": bid["deadline"], "name": bid["name"]}


def test_revoked_key_is_refused_within_the_stated_time(api, zone, lane, monkeypatch):
    [before] = post_all([request_of(api, body_of(api, zone, price="0.05"))])
    assert before.status_code == 402
    key_id = api.owner.api_keys.get().pk
    revoke_api_key(
        organisation=api.owner,
        key_id=key_id,
        revoked_by=builders.owner_of(api.owner),
        now=clock.now(),
    )
    later = clock.now() + timedelta(seconds=KEYS_KEPT_S)
    monkeypatch.setattr(clock, "now", lambda: later)
    [after] = post_all([request_of(api, body_of(api, zone))])
    assert (after.status_code, after.json()["code"]) == (401, "invalid_api_key")


def test_data_that_must_be_counted_first_keep_nobody_waiting(
    api, zone, tokenizer_zone, lane, monkeypatch
):
    """Counting tokens reads a whole file."""
    upload = uploaded(api, tokenizer_zone)
    elsewhere = market.zone(tokenizer_source=tokenizer_zone.tokenizer_source)
    elsewhere.base_model_revision = "other"
    elsewhere.save()
    market.node(elsewhere)
    slow = request_of(api, body_of(api, elsewhere, dataset_id=upload, price="1.00"))
    quick = request_of(api, body_of(api, zone))
    counting, counted = threading.Event(), threading.Event()
    ensure = asked_bids.ensure_dataset_tokens

    def ensure_late(*, dataset, zone):
        if zone.pk == elsewhere.pk:
            counting.set()
            assert counted.wait(60)
        return ensure(dataset=dataset, zone=zone)

    monkeypatch.setattr(asked_bids, "ensure_dataset_tokens", ensure_late)

    async def talk(client):
        waiting = asyncio.create_task(client.post("/api/bids", **slow))
        while not counting.is_set():
            await asyncio.sleep(0.001)
        first = await client.post("/api/bids", **quick)
        assert not waiting.done()
        counted.set()
        return first, await waiting

    assert [answer.status_code for answer in run(talk)] == [201, 201]


def uploaded(api, zone):
    made = api.form("/api/datasets", {"file": SimpleUploadedFile("d", ROWS), "zone": zone.name})
    return made.json()["id"]


def test_database_that_does_not_answer_is_a_busy_market(api, zone, monkeypatch):
    def broken(*, asked, now):
        raise OperationalError("gone")

    monkeypatch.setattr(bid_answers, "place_bids", broken)
    answers = post_all([request_of(api, body_of(api, zone))] * 2)
    assert [answer.status_code for answer in answers] == [503, 503]
    assert answers[0].json()["code"] == "busy"
    assert answers[0].headers["Retry-After"] == "1"
    assert not Bid.objects.exists()


def test_caller_who_leaves_before_the_writing_has_not_bid(api, zone, first_batch, opener):
    leaving = LeavingCaller(request_of(api, body_of(api, zone)))

    async def talk(client):
        first = await first_batch.opened(client, opener)
        gone = await first_batch.queued(leaving.send())
        leaving.leave()
        await gone
        first_batch.go_on()
        return await first

    assert run(talk).status_code == 400
    assert not Bid.objects.exists()
    assert not Hold.objects.exists()


def test_caller_who_leaves_while_the_bid_waits_finds_it_under_the_key(api, zone, monkeypatch):
    monkeypatch.setattr(wait, "WAIT_S", 30.0)
    request = request_of(api, body_of(api, zone), key="k1")
    leaving = LeavingCaller(request)
    placed = threading.Event()
    expecting = NotificationListener.expecting

    def expecting_noted(listener, bid_id):
        placed.set()
        return expecting(listener, bid_id)

    monkeypatch.setattr(NotificationListener, "expecting", expecting_noted)

    async def talk(client):
        gone = asyncio.create_task(leaving.send())
        while not placed.is_set():
            await asyncio.sleep(0.001)
        leaving.leave()
        await gone

    run(talk)
    decide_pending_bids(zone=zone, now=clock.now())
    [again] = post_all([request])
    assert again.status_code == 201
    assert Bid.objects.count() == 1


def test_decision_whose_notification_is_lost_is_found_by_looking(api, zone, lane, monkeypatch):
    monkeypatch.setattr(wakeups, "notify_decided", lambda *, bid_ids: None)
    [answer] = post_all([request_of(api, body_of(api, zone))])
    assert answer.status_code == 201


def test_decision_heard_of_before_the_waiting_began_is_answered_at_once(api, zone, monkeypatch):
    """The lane may be quicker than the way from the placing thread to the event loop."""
    monkeypatch.setattr(wait, "WAIT_S", 30.0)
    monkeypatch.setattr(wait, "LOOK_EVERY_S", 20.0)
    place = bid_answers.place_bids

    def place_and_decide(*, asked, now):
        placed = place(asked=asked, now=now)
        [bid_id] = [item.bid.pk for item in placed if isinstance(item, PlacedBid)]
        with wait.listener.expecting(bid_id) as heard:
            decide_pending_bids(zone=zone, now=now)
            heard.result(60)
        return placed

    monkeypatch.setattr(bid_answers, "place_bids", place_and_decide)
    began = time.monotonic()
    [answer] = post_all([request_of(api, body_of(api, zone, price="1.00"))])
    assert answer.status_code == 201
    assert time.monotonic() - began < 20.0


def test_decisions_that_cannot_be_read_are_read_again_and_told_of_when_time_is_over(
    api, zone, lane, monkeypatch
):
    failures = [OperationalError("gone"), None]
    refresh = bid_answers.refresh_bids

    def broken(bids):
        error = failures.pop(0) if len(failures) > 1 else failures[0]
        if error is not None:
            raise error
        refresh(bids)

    monkeypatch.setattr(bid_answers, "refresh_bids", broken)
    body = body_of(api, zone)
    [answer] = post_all([request_of(api, body, key="k1")])
    assert answer.status_code == 201
    monkeypatch.setattr(wait, "WAIT_S", 0.2)
    failures[:] = [OperationalError("gone")]
    [lost] = post_all([request_of(api, body, key="k1")])
    assert (lost.status_code, lost.json()["code"]) == (503, "busy")
    failures[:] = [None]
    [again] = post_all([request_of(api, body, key="k1")])
    assert (again.status_code, again.json()) == (201, answer.json())
