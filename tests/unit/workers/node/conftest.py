import pytest

from tests.unit.workers.node.market_double import MarketDouble
from tests.unit.workers.node.slice_world import World


@pytest.fixture
def market():
    market = MarketDouble()
    yield market
    market.close()


@pytest.fixture
def world(market, tmp_path):
    world = World(market, tmp_path)
    yield world
    world.close()
