from __future__ import annotations

import pytest

from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Job
from marketplace.tiers import provisioning
from marketplace.tiers.models import ZoneTiers
from tests import builders, market_builders
from tests.builders import NOW
from tests.job_builders import at
from tests.unit.marketplace.tiers.backends import MemoryBackend, tiers
from tests.unit.marketplace.tiers.handoff import RESERVED_ASK, RESERVED_FROM_S, tick


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> MemoryBackend:
    """The only backend there is."""
    made = MemoryBackend()
    monkeypatch.setattr(provisioning, "BACKENDS", {"memory": lambda: made})
    for module in ("services", "machines"):
        monkeypatch.setattr(f"marketplace.tiers.{module}.BACKENDS", provisioning.BACKENDS)
    return made


@pytest.fixture
def zone(db: None) -> Zone:
    return market_builders.zone()


@pytest.fixture
def house(zone: Zone, backend: MemoryBackend) -> ZoneTiers:
    """Both tiers rented; a move takes 4 s and, with lambda, repays from 19 s of serverless on."""
    tiers(zone)
    ZoneTiers.objects.update(checkpoint_s=2.0, restore_s=2.0, probe_s=5.0)
    return ZoneTiers.objects.get()


@pytest.fixture
def job(house: ZoneTiers, backend: MemoryBackend) -> Job:
    """A job of twenty cells that runs on serverless since 1 s after the bid."""
    market_builders.node(house.zone, ask_micros=RESERVED_ASK, available_from_at=at(RESERVED_FROM_S))
    owner = builders.organisation(usd="100")
    bid = market_builders.bid(owner, house.zone, epochs=20, slots=55)
    decide_pending_bids(zone=house.zone, now=NOW)
    ZoneTiers.objects.update(starts_directly=False)
    tick(0)
    backend.join(backend.only(), now=at(1))
    tick(1)
    return Job.objects.get(bid_id=bid.pk)
