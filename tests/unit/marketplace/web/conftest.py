"""A market with one node, an owner with money, and their browser."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
import time_machine
from django.test import Client

from marketplace.accounts.models import Organisation
from marketplace.auction.lane.sweep import sweep_zones
from marketplace.fleet.models import Node, Zone
from marketplace.jobs.models import Dataset
from marketplace.jobs.services import intake
from tests import builders, market_builders
from tests.builders import NOW
from tests.durable_work import do_at_once


@dataclass(frozen=True, slots=True)
class Site:
    client: Client
    organisation: Organisation
    zone: Zone
    node: Node
    dataset: Dataset

    def bid_form(self, **changed: Any) -> dict[str, Any]:
        """What the bid page sends; times are typed in UTC, the zone without a cookie."""
        return {
            "name": "support-tone",
            "zone": self.zone.name,
            "dataset": self.dataset.pk,
            "epochs": "1",
            "batch_size": "8",
            "rank": "8",
            "alpha": "auto",
            "dropout": "0",
            "learning_rate": "1e-3",
            "deadline": "2026-03-02T09:05:00",
            "price": "5",
            "key": "submission-1",
            "do": "place",
        } | changed


@pytest.fixture
def moment() -> datetime:
    return NOW


@pytest.fixture
def site(db: None, client: Client, moment: datetime) -> Any:
    with time_machine.travel(moment, tick=False):
        zone = market_builders.zone()
        node = market_builders.node(zone)
        owner = builders.user(name="Mira Okafor")
        organisation = builders.organisation(name="Northwind Labs", owner=owner, usd="100")
        client.force_login(owner)
        dataset = market_builders.dataset(organisation, zone)
        # The zone's lane has looked at the fleet, so there is something to quote from.
        sweep_zones(clock=lambda: moment)
        yield Site(client, organisation, zone, node, dataset)


@pytest.fixture(autouse=True)
def uploads_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "enqueue_work", do_at_once)
