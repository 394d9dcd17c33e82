from __future__ import annotations

import pytest

from marketplace.fleet.models import Zone
from marketplace.tiers import provisioning
from tests import market_builders
from tests.unit.marketplace.tiers.backends import MemoryBackend


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
