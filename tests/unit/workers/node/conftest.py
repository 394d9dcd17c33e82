from functools import cache

import pytest

from tests.unit.workers.node.market_double import MarketDouble
from tests.unit.workers.node.slice_world import World
from workers.node import self_test
from workers.node.self_test import SpeedCase


@pytest.fixture
def market():
    market = MarketDouble()
    yield market
    market.close()


@cache
def _measure(whole, device, memory_gb, base_models):
    small = {"cases": (SpeedCase(2, 0.05, 2),), "work_cases": (), "seconds_each": 0.01}
    return whole(device=device, memory_gb=memory_gb, base_models=base_models, **small)


@pytest.fixture
def measured(monkeypatch) -> list[str]:
    """The devices that were measured, in order: with one small case, and once for all tests."""
    done: list[str] = []
    whole = self_test.measure_node

    def measure(*, device, base_models, memory_gb, **_):
        done.append(device)
        return _measure(whole, device, memory_gb, tuple(base_models))

    monkeypatch.setattr(self_test, "measure_node", measure)
    return done


@pytest.fixture
def world(market, tmp_path):
    world = World(market, tmp_path)
    yield world
    world.close()
