"""Bids that are taken in together: the same answers as one by one, and nothing shared but work."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest
from django.core.cache import cache
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import OperationalError
from django.test import Client

from marketplace.accounts.services import revoke_api_key
from marketplace.api.callers import KEYS_KEPT_S
from marketplace.api.market import desk as desks
from marketplace.api.market import group
from marketplace.api.market.entrance import BODY_LIMIT
from marketplace.api.models import IdempotencyRecord
from marketplace.auction.bidding import wait
from marketplace.auction.lane import wakeups
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid
from marketplace.auction.settlement import settle_finished
from marketplace.common import clock
from marketplace.jobs.models import Job
from marketplace.jobs.services import cancel_job
from marketplace.payments.models import Hold
from marketplace.payments.selectors import ledger_check, wallet
from tests import builders
from tests import market_builders as market
from tests.unit.marketplace.api.client import ROWS, Api, body_of
from tests.unit.marketplace.api.entrance import entrance, post_all, request_of, run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _no_counters():
    cache.clear()


def grouped(requests, monkeypatch):
    """Answers to requests that are certain to be one group."""
    groups = []

    def noted(posts, *, now):
        groups.append(len(posts))
        return group.posts_place(posts, now=now)

    soon = desks.Desk._write_soon

    def when_all_are_here(desk):
        # Each comes to the desk when the loop gets to it, the first perhaps long before the last.
        if len(desk._queue) == len(requests):
            soon(desk)

    monkeypatch.setattr(desks, "posts_place", noted)
    monkeypatch.setattr(desks.Desk, "_write_soon", when_all_are_here)
    answers = post_all(requests)
    assert groups == [len(requests)]
    return answers


def headers_of(answer):
    """Headers by name; how much of the limit is left differs from request to request."""
    headers = {name.lower(): value for name, value in answer.headers.items()}
    if "ratelimit" in headers:
        headers["ratelimit"] = headers["ratelimit"].split(";")[0]
    return headers


def assert_same_answer(view, together):
    assert together.status_code == view.status_code, (view.content, together.content)
    assert together.json() == view.json()
    assert headers_of(together) == headers_of(view)


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"price": "0"}, 400),
        ({"price": "NaN"}, 400),
        ({"price": []}, 400),
        ({"price": None}, 400),
        ({"deadline": "2020-01-01T00:00:00Z"}, 400),
        ({"deadline": "2026-11-21T06:00:00"}, 400),
        ({"deadline": "soon"}, 400),
        ({"zone": "nowhere"}, 404),
        ({"zone": 5}, 404),
        ({"dataset_id": "ds_nothing"}, 404),
        ({"dataset_id": "a\0b"}, 400),
        ({"dataset_id": None}, 400),
        ({"dataset_id": ""}, 400),
        ({"training": {"epochs": 0}}, 400),
        ({"training": "epochs"}, 400),
        ({"adapter": {"rank": "big"}}, 400),
        ({"dead_line": "soon", "other": 1}, 400),
        ({"name": "x" * 100}, 400),
        ({"name": "x" * 300}, 400),
        ({"price": "50"}, 402),
    ],
)
def test_both_roads_refuse_the_same_bids_in_the_same_words(api, zone, changed, status, monkeypatch):
    # The words of a deadline name the present moment.
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now)
    body = body_of(api, zone, **changed)
    view = api.post("/api/bids", body, HTTP_X_REQUEST_ID="r1", HTTP_HOST="localhost")
    [together] = post_all([request_of(api, body, **{"X-Request-Id": "r1"})])
    assert view.status_code == status, view.content
    assert_same_answer(view, together)
    assert not Bid.objects.exists()
    assert not Hold.objects.exists()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"price": NaN}', b'"\xff"', b"[" * 60_000]
)
def test_both_roads_refuse_bodies_that_are_no_bid(api, content):
    headers = api.headers | {"Content-Type": "application/json", "X-Request-Id": "r1"}
    view = Client().post("/api/bids", content, content_type="application/json", headers=headers)
    [together] = post_all([{"content": content, "headers": headers}])
    assert view.status_code == 400
    assert_same_answer(view, together)


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer ft_wrong_key"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic abc"},
        {"Authorization": ""},
        {"Idempotency-Key": ""},
        {"Idempotency-Key": "x" * 256},
        {"Idempotency-Key": "a\tb"},
        {"X-Request-Id": "not one of ours"},
    ],
)
def test_both_roads_refuse_the_same_headers(api, zone, headers):
    body = body_of(api, zone, price="0")
    sent = {"X-Request-Id": "r1"} | api.headers | headers
    view = Client().post("/api/bids", body, content_type="application/json", headers=sent)
    [together] = post_all([{"json": body, "headers": sent}])
    assert view.status_code in (400, 401)
    if "X-Request-Id" in headers:
        # An id of ours on both roads, another each time.
        assert together.json()["request_id"] == together.headers["X-Request-Id"]
        assert together.headers["X-Request-Id"].startswith("req_")
        return
    assert_same_answer(view, together)


def test_both_roads_ask_for_the_scope(zone):
    reader = Api(builders.organisation(usd="10"), scopes=["bids:read"])
    body = body_of(reader, zone)
    view = reader.post("/api/bids", body, HTTP_X_REQUEST_ID="r1")
    [together] = post_all([request_of(reader, body, **{"X-Request-Id": "r1"})])
    assert view.status_code == 403
    assert_same_answer(view, together)


@pytest.mark.parametrize(("price", "status"), [("5.00", 201), ("0.05", 402)])
def test_both_roads_answer_a_decided_bid_alike(api, zone, lane, price, status):
    body = body_of(api, zone, price=price)
    sent = {"HTTP_X_REQUEST_ID": "r1"}
    [first] = post_all([request_of(api, body, key="k1", **{"X-Request-Id": "r1"})])
    view = api.post("/api/bids", body, key="k1", **sent)
    [again] = post_all([request_of(api, body, key="k1", **{"X-Request-Id": "r1"})])
    assert first.status_code == status
    assert first.json() == view.json()
    assert headers_of(first) | {"idempotent-replayed": "true"} == headers_of(view)
    assert_same_answer(view, again)
    new = api.post("/api/bids", body, key="k2", **sent)
    address = f"/api/bids/{told(new.json())['id']}"
    assert headers_of(new) == headers_of(first) | {"location": address}
    assert told(new.json()).keys() == told(first.json()).keys()
    assert Bid.objects.count() == 2
    assert not IdempotencyRecord.objects.exists()


def told(answer):
    """The bid in an answer."""
    return answer.get("bid", answer)


def test_group_is_answered_each_for_itself(api, zone, lane, monkeypatch):
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
    answers = grouped(requests, monkeypatch)
    assert [answer.status_code for answer in answers] == [201, 402, 400, 402, 401, 404, 201]
    assert answers[1].json()["code"] == "insufficient_funds"
    assert answers[3].json()["code"] == "bid_below_price"
    assert answers[5].json()["code"] == "unknown_dataset"
    arrived = Bid.objects.order_by("arrival")
    assert [bid.price_micros for bid in arrived] == [5_000_000, 10_000, 1_000_000]
    assert wallet(organisation=poor.owner).available_micros == 900_000
    assert ledger_check().balanced


def test_bids_that_together_exceed_a_wallet_are_funded_in_order_of_arrival(
    api, zone, lane, monkeypatch
):
    prices = ["6.00", "5.00", "4.00", "0.50"]
    requests = [request_of(api, body_of(api, zone, price=price)) for price in prices]
    answers = grouped(requests, monkeypatch)
    assert [answer.status_code for answer in answers] == [201, 402, 201, 402]
    short = answers[1].json()
    assert (short["code"], short["short_micros"]) == ("insufficient_funds", 1_000_000)
    assert answers[3].json()["short_micros"] == 500_000
    assert Bid.objects.count() == 2
    assert ledger_check().balanced


def test_request_the_database_cannot_store_takes_no_other_along(api, zone, lane, monkeypatch):
    poison = body_of(api, zone, price="1.00")
    # No column of PostgreSQL holds this character, and no check of ours looks for it.
    poison["adapter"] = poison["adapter"] | {"target_modules": ["a\0b"]}
    good = [body_of(api, zone, price="1.00") for _ in range(3)]
    requests = [request_of(api, body) for body in (good[0], poison, *good[1:])]
    answers = grouped(requests, monkeypatch)
    assert [answer.status_code for answer in answers] == [201, 500, 201, 201]
    assert answers[1].json()["code"] == "internal_error"
    assert Bid.objects.count() == Hold.objects.count() == 3
    assert ledger_check().balanced


def test_same_key_in_one_group_bids_once_and_answers_all_alike(api, zone, lane, monkeypatch):
    body = body_of(api, zone)
    answers = grouped([request_of(api, body, key="k1")] * 5, monkeypatch)
    assert {answer.status_code for answer in answers} == {201}
    assert [answer.json() for answer in answers] == [answers[0].json()] * 5
    assert ["Idempotent-Replayed" in answer.headers for answer in answers] == [False] + [True] * 4
    assert Bid.objects.count() == 1
    assert wallet(organisation=api.owner).available_micros == 9_900_000


def test_same_key_with_another_body_in_one_group_is_a_conflict(api, zone, lane, monkeypatch):
    body = body_of(api, zone)
    other = body | {"price": "4.00"}
    answers = grouped([request_of(api, item, key="k1") for item in (body, other)], monkeypatch)
    assert [answer.status_code for answer in answers] == [201, 409]
    assert answers[1].json()["code"] == "idempotency_key_reused"
    assert answers[1].json()["bid_id"] == answers[0].json()["id"]
    assert Bid.objects.count() == 1


def test_key_of_a_bid_that_had_no_funds_is_free_for_the_next_in_the_group(
    api, zone, lane, monkeypatch
):
    body = body_of(api, zone, price="50.00")
    requests = [request_of(api, item, key="k1") for item in (body, body | {"price": "5.00"})]
    answers = grouped(requests, monkeypatch)
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


def test_limit_counts_each_request_of_a_group(api, zone, lane, settings, monkeypatch):
    settings.API_REQUESTS_PER_MINUTE = settings.API_REQUESTS_PER_MINUTE | {"bids": 2}
    other = Api(builders.organisation(usd="10"))
    requests = [request_of(api, body_of(api, zone, price="1.00")) for _ in range(4)]
    requests.append(request_of(other, body_of(other, zone)))
    answers = grouped(requests, monkeypatch)
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
    revoke_api_key(organisation=api.owner, key_id=key_id, now=clock.now())
    later = clock.now() + timedelta(seconds=KEYS_KEPT_S)
    monkeypatch.setattr(clock, "now", lambda: later)
    [after] = post_all([request_of(api, body_of(api, zone))])
    assert (after.status_code, after.json()["code"]) == (401, "invalid_api_key")


def test_data_that_must_be_counted_first_keep_nobody_waiting(
    api, zone, tokenizer_zone, lane, monkeypatch
):
    """Counting tokens reads a whole file; such a bid goes through the view."""
    upload = uploaded(api, tokenizer_zone)
    elsewhere = market.zone(tokenizer_source=tokenizer_zone.tokenizer_source)
    elsewhere.base_model_revision = "other"
    elsewhere.save()
    market.node(elsewhere)
    slow = body_of(api, elsewhere, dataset_id=upload, price="1.00")
    places = []
    monkeypatch.setattr(
        desks,
        "posts_place",
        lambda posts, *, now: [places.append(r) or r for r in group.posts_place(posts, now=now)],
    )
    answers = post_all([request_of(api, body_of(api, zone)), request_of(api, slow)])
    assert [type(place).__name__ for place in places] == ["Waiting", "PassOn"]
    assert [answer.status_code for answer in answers] == [201, 201]


def uploaded(api, zone):
    made = api.form("/api/datasets", {"file": SimpleUploadedFile("d", ROWS), "zone": zone.name})
    return made.json()["id"]


def test_database_that_does_not_answer_is_a_busy_market(api, zone, monkeypatch):
    def broken(names):
        raise OperationalError("gone")

    monkeypatch.setattr(group, "get_zones_by_name", broken)
    answers = post_all([request_of(api, body_of(api, zone))] * 2)
    assert [answer.status_code for answer in answers] == [503, 503]
    assert answers[0].json()["code"] == "busy"
    assert answers[0].headers["Retry-After"] == "1"
    assert not Bid.objects.exists()


def test_whatever_is_unusual_goes_through_the_view(api, zone, lane, monkeypatch):
    def never(posts, *, now):
        raise AssertionError("the desk was asked")

    monkeypatch.setattr(desks, "posts_place", never)
    body = body_of(api, zone, price="0.05")
    content = json.dumps(body).encode()
    json_type = {"Content-Type": "application/json"}

    async def talk(client):
        async def chunks():
            yield content

        return [
            await client.post("/api/bids?x=1", json=body, headers=api.headers),
            await client.post("/api/bids", content=chunks(), headers=api.headers | json_type),
            await client.post(
                "/api/bids", json=body, headers=api.headers | {"Accept": "text/html"}
            ),
            await client.post("/api/bids", json=body),
            await client.post(
                "/api/bids",
                content=content + b" " * BODY_LIMIT,
                headers=api.headers | json_type,
            ),
            await client.post("/api/bids", data={"zone": "x"}, headers=api.headers),
            await client.post("http://elsewhere.example/api/bids", json=body, headers=api.headers),
            await client.get("/api/bids", headers=api.headers),
        ]

    answers = run(talk)
    assert [answer.status_code for answer in answers] == [402, 400, 406, 401, 402, 400, 400, 200]


def test_whoever_leaves_before_the_writing_has_not_bid(api, zone, monkeypatch):
    monkeypatch.setattr(wait, "WAIT_S", 0.1)
    first = request_of(api, body_of(api, zone, price="1.00"))
    second = request_of(api, body_of(api, zone, price="2.00"))

    async def talk(client):
        # The second has to wait for its group's turn, and does not.
        monkeypatch.setattr(desks, "PACE_S", 0.3)
        await client.post("/api/bids", **first)
        gone = asyncio.create_task(client.post("/api/bids", **second))
        while not entrance._desk._queue:
            await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        while entrance._desk._writing or entrance._desk._queue:
            await asyncio.sleep(0.01)

    run(talk)
    assert [bid.price_micros for bid in Bid.objects.all()] == [1_000_000]


def test_after_a_crowd_the_next_group_gathers_for_longer(api, zone, monkeypatch):
    monkeypatch.setattr(wait, "WAIT_S", 0.1)
    monkeypatch.setattr(desks, "CROWD_PACE_S", 1000.0)
    bodies = [request_of(api, body_of(api, zone, price="1.00")) for _ in range(desks.CROWD + 1)]
    waits = []

    async def talk(client):
        loop = asyncio.get_running_loop()
        await client.post("/api/bids", **bodies[0])
        desk = entrance._desk
        waits.append(desk._next_at - loop.time())
        # As if a group were being written: those who come meanwhile are the next.
        desk._writing = True
        crowd = [asyncio.create_task(client.post("/api/bids", **body)) for body in bodies[1:]]
        while len(desk._queue) < desks.CROWD:
            await asyncio.sleep(0)
        desk._writing = False
        desk._write_soon()
        await asyncio.gather(*crowd)
        waits.append(desk._next_at - loop.time())

    run(talk)
    assert waits[0] <= desks.PACE_S
    assert waits[1] > 500.0
    assert Bid.objects.count() == desks.CROWD + 1


def test_whoever_leaves_while_the_bid_waits_finds_it_under_the_key(api, zone, monkeypatch):
    monkeypatch.setattr(wait, "WAIT_S", 30.0)
    body = body_of(api, zone)

    async def leave(client):
        gone = asyncio.create_task(client.post("/api/bids", **request_of(api, body, key="k1")))
        while entrance._desk is None or not entrance._desk._bids:
            await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)

    run(leave)
    decide_pending_bids(zone=zone, now=clock.now())
    [again] = post_all([request_of(api, body, key="k1")])
    assert again.status_code == 201
    assert Bid.objects.count() == 1


def test_decision_whose_notification_is_lost_is_found_by_looking(api, zone, lane, monkeypatch):
    monkeypatch.setattr(wakeups, "notify_decided", lambda *, bid_ids: None)
    [answer] = post_all([request_of(api, body_of(api, zone))])
    assert answer.status_code == 201


def test_decision_heard_of_before_the_waiting_began_is_answered_at_once(api, zone, monkeypatch):
    """The lane may be quicker than the way from the writing thread to the event loop."""
    monkeypatch.setattr(wait, "WAIT_S", 30.0)
    monkeypatch.setattr(desks, "LOOK_EVERY_S", 30.0)
    bodies = [body_of(api, zone, price="1.00") for _ in range(2)]

    def placed_and_decided(posts, *, now):
        replies = group.posts_place(posts, now=now)
        decide_pending_bids(zone=zone, now=now)
        heard = asyncio.run_coroutine_threadsafe(until_heard(posts), entrance._desk.loop)
        heard.result(20)
        return replies

    async def until_heard(posts):
        while len(entrance._desk._heard) < len(posts):
            await asyncio.sleep(0.005)

    monkeypatch.setattr(desks, "posts_place", placed_and_decided)
    wakeups.listener._ready.wait(10)
    answers = post_all([request_of(api, body) for body in bodies])
    assert [answer.status_code for answer in answers] == [201, 201]


def test_decisions_that_cannot_be_read_are_read_again_and_told_of_when_time_is_over(
    api, zone, lane, monkeypatch
):
    failures = [OperationalError("gone"), None]

    def broken(waiting, *, last):
        error = failures.pop(0) if len(failures) > 1 else failures[0]
        if error is not None:
            raise error
        return group.waiting_answers(waiting, last=last)

    monkeypatch.setattr(desks, "waiting_answers", broken)
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
