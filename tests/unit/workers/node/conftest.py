import pytest

from tests.unit.workers.node.market_double import MarketDouble


@pytest.fixture
def market():
    market = MarketDouble()
    yield market
    market.close()
