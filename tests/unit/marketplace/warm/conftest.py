from __future__ import annotations

import pytest

from marketplace.warm.consents import set_consent
from tests import builders
from tests import market_builders as market
from tests.builders import NOW


@pytest.fixture
def zone():
    return market.zone()


@pytest.fixture
def owner():
    return builders.organisation(usd="50")


@pytest.fixture
def giver():
    """An organisation that gives its adapters to others."""
    organisation = builders.organisation(usd="50")
    set_consent(organisation=organisation, uses_donors=False, gives_adapters=True, now=NOW)
    return organisation
