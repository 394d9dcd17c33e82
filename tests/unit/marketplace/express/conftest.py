from __future__ import annotations

import pytest

from tests import express_builders as express


@pytest.fixture
def zone():
    return express.zone_with_nodes()


@pytest.fixture
def lane(zone):
    """A lane with one seat, sold from ``OPEN_AT`` on."""
    return express.open_lane(zone)


@pytest.fixture
def owner():
    return express.customer()
