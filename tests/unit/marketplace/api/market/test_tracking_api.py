"""The key of Weights & Biases, as an organisation's programs see it."""

from __future__ import annotations

import pytest

from marketplace.common.encryption import decrypt_text
from marketplace.tracking import wandb_client
from marketplace.tracking.models import TrackingKey
from tests import builders
from tests.unit.marketplace.api.client import Api, assert_problem

pytestmark = pytest.mark.django_db
ADDRESS = "/api/integrations/wandb"
KEY = "k" * 40


def test_a_key_is_given_replaced_and_taken_back_and_never_shown():
    owner, other = builders.organisation(), builders.organisation()
    api = Api(owner)
    assert (api.get(ADDRESS).json()["has_key"], api.get(ADDRESS).json()["set_at"]) == (False, None)
    for key in (KEY, "l" * 40):
        answer = api.put(ADDRESS, {"key": key})
        assert (answer.status_code, answer.json()["has_key"]) == (200, True)
        assert key not in answer.content.decode()
        assert decrypt_text(TrackingKey.objects.get().key) == key
    assert Api(other).get(ADDRESS).json()["has_key"] is False
    assert Api(other).delete(ADDRESS).status_code == 204
    assert api.get(ADDRESS).json()["has_key"] is True
    assert api.delete(ADDRESS).status_code == 204
    assert not TrackingKey.objects.exists()


def test_what_is_no_key_is_refused_and_changes_nothing():
    api = Api(builders.organisation())
    assert_problem(api.put(ADDRESS, {"key": "short"}), 400, "invalid_key")
    assert api.put(ADDRESS, {"key": "k" * 201}).status_code == 400
    assert api.put(ADDRESS, {}).status_code == 400
    assert not TrackingKey.objects.exists()
    reader = Api(builders.organisation(), scopes=["jobs:read"])
    assert_problem(reader.put(ADDRESS, {"key": KEY}), 403, "missing_scope")


def test_a_market_without_the_client_says_so(monkeypatch):
    monkeypatch.setattr(wandb_client, "find_spec", lambda _: None)
    api = Api(builders.organisation())
    assert_problem(api.put(ADDRESS, {"key": KEY}), 409, "tracking_not_installed")


def test_a_server_is_stored_with_its_key_beside_the_other_service():
    owner = builders.organisation()
    api, server = Api(owner), "https://mlflow.example.com/team"
    api.put(ADDRESS, {"key": KEY})
    for key in ("ana:secret", ""):
        answer = api.put("/api/integrations/mlflow", {"address": server, "key": key})
        assert answer.status_code == 200
        shown = answer.json()
        assert (shown["service"], shown["address"], shown["has_key"]) == ("mlflow", server, True)
        assert "secret" not in answer.content.decode()
    assert api.get(ADDRESS).json()["address"] is None
    wrong = api.put("/api/integrations/mlflow", {"address": "http://mlflow.example.com"})
    assert_problem(wrong, 400, "invalid_url")
    assert TrackingKey.objects.get(service="mlflow").address == server
    assert api.delete("/api/integrations/mlflow").status_code == 204
    assert decrypt_text(TrackingKey.objects.get().key) == KEY
