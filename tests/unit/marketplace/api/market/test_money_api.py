"""Wallet, nodes and earnings over the API: each organisation's own, and no bids of others."""

from __future__ import annotations

import json

import pytest
from django.test import Client

from marketplace.payments.selectors import list_wallet_rows
from tests import builders
from tests import market_builders as market

pytestmark = pytest.mark.django_db


def read(owner, path):
    _, secret = builders.api_key(owner)
    return Client(headers={"Authorization": f"Bearer {secret}"}).get(path)


def test_a_wallet_and_its_entries_are_the_callers_own_in_pages():
    owner = builders.organisation(usd="10")
    zone = market.zone()
    market.node(zone)
    market.bid(owner, zone, price_micros=4_000_000)
    wallet = read(owner, "/api/wallet").json()
    assert wallet == {"object": "wallet", "available": "6.000000", "held": "4.000000"}
    first = read(owner, "/api/wallet/entries?limit=1").json()
    assert first["has_more"]
    [held] = first["data"]
    assert (held["available_change"], held["held_change"]) == ("-4.000000", "4.000000")
    rest = read(owner, f"/api/wallet/entries?after={held['cursor']}").json()
    assert not rest["has_more"]
    listed = [held["id"], *(entry["id"] for entry in rest["data"])]
    assert listed == [row.entry_id for row in list_wallet_rows(organisation=owner)]
    stranger = builders.organisation()
    assert read(stranger, "/api/wallet/entries").json()["data"] == []
    assert read(owner, "/api/wallet/entries?after=x").json()["code"] == "invalid_cursor"


def test_a_provider_sees_its_nodes_and_what_they_earned_and_no_bid():
    zone = market.zone()
    node = market.node(zone)
    provider = node.provider.organisation
    market.bid(builders.organisation(usd="10"), zone, price_micros=4_321_000)
    [listed] = read(provider, "/api/nodes").json()["data"]
    assert (listed["id"], listed["zone"]) == (node.pk, zone.name)
    earned = read(provider, "/api/earnings").json()
    assert earned == {"pending": "0.000000", "payable": "0.000000", "data": [], "has_more": False}
    for path in (
        "/api/nodes",
        "/api/earnings",
        "/api/bids",
        "/api/jobs",
        f"/api/market/{zone.name}",
    ):
        assert "4.321" not in json.dumps(read(provider, path).json()), path
    assert read(builders.organisation(), "/api/nodes").json()["data"] == []
