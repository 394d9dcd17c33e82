"""What no view could read is refused before one tries, with words and never as a fault of ours."""

from __future__ import annotations

import json

import pytest
from django.test import Client

from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.unit.marketplace.api.client import Api, assert_problem, body_of

pytestmark = pytest.mark.django_db(transaction=True)

CHARSETS = ["zlib", "bz2", "idna", "utf-16", "rot13", "'zlib'", "nothing"]


@pytest.fixture
def visitor() -> Client:
    return Client(raise_request_exception=False)


@pytest.fixture
def zone():
    zone = market.zone()
    market.node(zone)
    return zone


@pytest.fixture
def api():
    return Api(builders.organisation(usd="10"))


@pytest.mark.parametrize("charset", CHARSETS)
@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=x", "application/json"])
def test_a_body_in_a_charset_of_no_text_is_refused(visitor, charset, kind):
    content_type = f"{kind}; charset={charset}"
    page = visitor.generic("POST", "/accounts/login/", b"a=b", content_type=content_type)
    assert page.status_code == 415
    assert "This request was not understood" in page.content.decode()
    for address in ("/api/bids", "/internal/v1/join"):
        answer = visitor.generic("POST", address, b"{}", content_type=content_type)
        code = json.loads(answer.content)["code"]
        assert (answer.status_code, code) == (415, "unsupported_charset")


@pytest.mark.parametrize("charset", ["UTF-8", '"utf-8"'])
def test_charsets_of_text_are_taken(visitor, charset):
    kind = f"application/x-www-form-urlencoded; charset={charset}"
    assert visitor.post("/accounts/login/", data="a=b", content_type=kind).status_code == 200


@pytest.mark.parametrize(
    "address",
    [
        "/api/market/%00",
        "/api/market/%00/transcript",
        "/live/jobs/%00",
        "/live/market/%00",
        "/internal/v1/leases/%00/blobs/dataset",
        "/jobs/%00",
        "/?a=%00",
    ],
)
def test_nul_in_an_address_is_malformed(visitor, address):
    assert visitor.get(address).status_code == 400


def test_nul_in_a_form_is_malformed(visitor):
    visitor.force_login(builders.user())
    answer = visitor.post("/settings/organisation", {"organisation": "a\0b"})
    assert answer.status_code == 400
    assert "This request was not understood" in answer.content.decode()


@pytest.mark.parametrize("text", ["\0", "a\0b"])
def test_nul_in_json_is_refused_as_a_value(api, zone, text):
    for changed in (
        {"name": text},
        {"adapter": {"init_text": text}},
        {"adapter": {"target_modules": [text]}},
        {"training": {text: 1}},
        {"zone": text},
        {"dataset_id": text},
    ):
        answer = api.post("/api/bids", body_of(api, zone, **changed))
        assert answer.status_code in (400, 404), (changed, answer.content)
    for query in ("status", "after", "limit"):
        assert api.get(f"/api/bids?{query}=%00").status_code == 400


@pytest.mark.parametrize("text", ["a\ud800b", "\udc00"])
def test_a_text_that_cannot_be_stored_is_malformed_json(api, zone, text):
    for changed in (
        {"name": text},
        {"adapter": {"init_text": text}},
        {"adapter": {"target_modules": [text]}},
        {"training": {text: 1}},
    ):
        assert_problem(
            api.post("/api/bids", body_of(api, zone, **changed)), 400, "malformed_request"
        )
    quote = {"zone": zone.name, "dataset_id": text, "deadline": "2027-01-01T00:00:00Z"}
    assert_problem(api.post("/api/quotes", quote), 400, "malformed_request")


def test_an_escape_that_means_a_text_is_taken(api, zone):
    body = body_of(api, zone, price="0.000001", name="\u2603 caf\u00e9 \\u0000 \U0001f600")
    answer = api.post("/api/quotes", {key: body[key] for key in ("zone", "dataset_id", "deadline")})
    assert answer.status_code == 200, answer.content


@pytest.mark.parametrize(
    "at", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "0000-00-00T00:00:00Z"]
)
def test_a_deadline_outside_the_calendar_is_refused(api, zone, at):
    answer = api.post("/api/bids", body_of(api, zone, deadline=at))
    assert_problem(answer, 400, "invalid_deadline")


@pytest.mark.parametrize("number", [10**30, -(10**30), 10**400])
def test_numbers_of_any_length_are_refused_as_settings(api, zone, number):
    for group, name in [
        ("adapter", "rank"),
        ("adapter", "alpha"),
        ("training", "batch_size"),
        ("training", "epochs"),
        ("training", "sequence_length"),
        ("training", "learning_rate"),
        ("training", "seed"),
    ]:
        answer = api.post("/api/bids", body_of(api, zone, **{group: {name: number}}))
        assert_problem(answer, 400, "invalid_hyperparameter")


def test_a_body_with_too_many_parts_is_refused(api, visitor):
    fields = {f"f{number}": "x" for number in range(1500)}
    answer = api.form("/api/datasets", fields)
    assert_problem(answer, 400, "malformed_request")
    assert visitor.post("/accounts/login/", fields).status_code == 400


@pytest.mark.parametrize("token", ["\ud800", "\0", "x"])
def test_no_text_of_a_node_is_our_fault(visitor, token):
    answer = visitor.post(
        "/internal/v1/join/models", json.dumps({"token": token}), content_type="application/json"
    )
    assert answer.status_code in (400, 403)
    node, reply = build.joined(market.zone())
    beat = {"node_id": node.pk, "at": 0.0, "memory_used_gb": 1.0, "draining": False}
    headers = {"Authorization": f"Bearer {reply.api_token}"}
    answer = visitor.post(
        "/internal/v1/heartbeat",
        json.dumps(beat | {"node_id": token}),
        content_type="application/json",
        headers=headers,
    )
    assert answer.status_code < 500


def test_a_deadline_of_the_page_outside_the_calendar_is_refused(visitor, zone):
    owner = builders.organisation(usd="10")
    visitor.force_login(builders.owner_of(owner))
    data = market.dataset(owner, zone)
    for deadline in ("0001-01-01T00:00:00", "9999-12-31T23:59:59"):
        visitor.cookies["tz"] = "Pacific/Kiritimati"
        form = {
            "zone": zone.name,
            "dataset": data.pk,
            "deadline": deadline,
            "key": "k",
            "name": "n",
        }
        assert visitor.post("/bids/new", form | {"do": "check"}).status_code == 200
        assert visitor.get(f"/bids/new?deadline={deadline}").status_code == 200
