"""The API's own handler answers as the site's does, with no thread for each request that waits."""

from __future__ import annotations

import json
from io import BytesIO

import pytest
from django.conf import settings
from django.test import Client
from rest_framework.exceptions import ParseError

from marketplace.api.views import LastMemberParser, StrictJSONParser
from marketplace.common import clock
from tests import builders
from tests.unit.marketplace.api.client import Api, body_of
from tests.unit.marketplace.api.web_server import post_all, request_of, run

pytestmark = pytest.mark.django_db(transaction=True)


def headers_of(answer):
    """Headers by name; how much of the limit is left differs from request to request."""
    headers = {name.lower(): value for name, value in answer.headers.items()}
    if "ratelimit" in headers:
        headers["ratelimit"] = headers["ratelimit"].split(";")[0]
        del headers["x-ratelimit-remaining-requests"], headers["x-ratelimit-reset-requests"]
    return headers


def assert_same_answer(site, own):
    assert own.status_code == site.status_code, (site.content, own.content)
    assert own.json() == site.json()
    assert headers_of(own) == headers_of(site)


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
def test_refused_bids_are_answered_as_by_the_site(api, zone, changed, status, monkeypatch):
    # The words of a deadline name the present moment.
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now)
    body = body_of(api, zone, **changed)
    site = api.post("/api/bids", body, HTTP_X_REQUEST_ID="r1", HTTP_HOST="localhost")
    [own] = post_all([request_of(api, body, **{"X-Request-Id": "r1"})])
    assert site.status_code == status, site.content
    assert_same_answer(site, own)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"price": NaN}',
        b'"\xff"',
        b"[" * 60_000,
        b'{"price": 1, "price": 2}',
    ],
)
def test_bodies_that_are_no_bid_are_answered_as_by_the_site(api, content):
    headers = api.headers | {"Content-Type": "application/json", "X-Request-Id": "r1"}
    site = Client().post("/api/bids", content, content_type="application/json", headers=headers)
    [own] = post_all([{"content": content, "headers": headers}])
    assert site.status_code == 400
    assert_same_answer(site, own)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer ft_wrong_key"}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": "Basic abc"}, 401),
        ({"Authorization": ""}, 401),
        ({"Idempotency-Key": ""}, 400),
        ({"Idempotency-Key": "x" * 256}, 400),
        ({"Idempotency-Key": "a\tb"}, 400),
        ({"Accept": "text/html"}, 406),
    ],
)
def test_odd_headers_are_answered_as_by_the_site(api, zone, headers, status):
    body = body_of(api, zone, price="0")
    sent = {"X-Request-Id": "r1"} | api.headers | headers
    site = Client().post("/api/bids", body, content_type="application/json", headers=sent)
    [own] = post_all([{"json": body, "headers": sent}])
    assert site.status_code == status
    assert_same_answer(site, own)


def test_id_of_a_request_that_is_not_one_of_ours_is_replaced(api, zone):
    [answer] = post_all([request_of(api, body_of(api, zone), **{"X-Request-Id": "not ours"})])
    assert answer.headers["X-Request-Id"].startswith("req_")


def test_scope_is_asked_for(zone):
    reader = Api(builders.organisation(usd="10"), scopes=["bids:read"])
    body = body_of(reader, zone)
    site = reader.post("/api/bids", body, HTTP_X_REQUEST_ID="r1")
    [own] = post_all([request_of(reader, body, **{"X-Request-Id": "r1"})])
    assert site.status_code == 403
    assert_same_answer(site, own)


def test_every_kind_of_request_reaches_the_view(api, zone, lane):
    body = body_of(api, zone, price="0.05")
    content = json.dumps(body).encode()
    json_type = {"Content-Type": "application/json"}

    async def talk(client):
        async def chunks():
            yield content

        return [
            await client.post("/api/bids?", json=body, headers=api.headers),
            await client.post("/api/bids", content=chunks(), headers=api.headers | json_type),
            await client.post("/api/bids", json=body),
            await client.post("/api/bids", content=content + b" " * 100_000, headers=api.headers),
            await client.post(
                "/api/bids", content=content + b" " * 100_000, headers=api.headers | json_type
            ),
            await client.post("/api/bids", data={"zone": "x"}, headers=api.headers),
            await client.post("http://elsewhere.example/api/bids", json=body, headers=api.headers),
            await client.get("/api/bids", headers=api.headers),
            await client.put("/api/bids", json=body, headers=api.headers),
            await client.get("/api/nothing"),
        ]

    answers = run(talk)
    assert [answer.status_code for answer in answers] == [
        402,
        400,
        401,
        415,
        402,
        415,
        400,
        200,
        405,
        404,
    ]


def test_person_in_the_browser_bids_with_a_session_and_its_token(api, zone, lane):
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(builders.owner_of(api.owner))
    session = browser.cookies[settings.SESSION_COOKIE_NAME].value
    token = "t" * 32
    cookies = {settings.SESSION_COOKIE_NAME: session, settings.CSRF_COOKIE_NAME: token}
    body = body_of(api, zone, price="0.05")

    async def talk(client):
        client.cookies.update(cookies)
        client.headers["Finetender-Organisation"] = api.owner.pk
        return [
            await client.post("/api/bids", json=body),
            await client.post("/api/bids", json=body, headers={"X-CSRFToken": token}),
            await client.get("/api/bids"),
        ]

    answers = run(talk)
    assert [answer.status_code for answer in answers] == [403, 402, 200]
    assert len(answers[2].json()["data"]) == 1


def test_of_a_member_that_comes_twice_only_openai_takes_the_last():
    content = b'{"bid": {"max_price": "1", "max_price": "2"}}'
    assert LastMemberParser().parse(BytesIO(content)) == {"bid": {"max_price": "2"}}
    with pytest.raises(ParseError, match='has "max_price" twice; send it once'):
        StrictJSONParser().parse(BytesIO(content))
    for parser in (LastMemberParser(), StrictJSONParser()):
        with pytest.raises(ParseError, match="NaN is no number of JSON"):
            parser.parse(BytesIO(b'{"price": NaN}'))
