"""What tests with real lanes begin with."""

from __future__ import annotations

import pytest

from marketplace.fleet.models import Zone
from tests import lane_process
from tests import market_builders as market


@pytest.fixture
def no_old_wake_ups() -> None:
    """A lane that is started here finds no tasks that earlier tests left behind."""
    lane_process.clear_queue()


@pytest.fixture
def zone() -> Zone:
    """A zone of four nodes."""
    zone = market.zone()
    for _ in range(4):
        market.node(zone)
    return zone
