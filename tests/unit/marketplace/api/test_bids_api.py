"""``/api/bids`` over HTTP, with a real lane behind it."""

from __future__ import annotations

import pytest
from django.test import Client

from marketplace.auction.models import Bid
from tests import builders
from tests import market_builders as market

pytestmark = pytest.mark.django_db(transaction=True)


def test_schema_is_openapi_3_1():
    answer = Client().get("/api/schema")
    assert answer.status_code == 200
    assert answer.json()["openapi"] == "3.1.0"
    assert "/api/bids" in answer.json()["paths"]


def test_unknown_addresses_answer_with_a_problem():
    answer = Client().get("/api/nothing")
    assert answer.status_code == 404
    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json()["code"] == "not_found"
    assert answer.json()["request_id"] == answer["X-Request-Id"]


def test_bids_without_a_key_are_asked_for_one():
    answer = Client().post("/api/bids", data={}, content_type="application/json")
    assert answer.status_code == 401
    assert answer.json()["code"] == "not_signed_in"
    assert answer["WWW-Authenticate"].startswith("Bearer")
    assert not Bid.objects.exists()
