"""Some seeds of the world; all that is promised holds after each of their steps."""

from __future__ import annotations

import os

import pytest

from tests.world.world import open_world

SEEDS = [int(seed) for seed in os.environ.get("WORLD_SEEDS", "1 2 3").split()]
STEPS = int(os.environ.get("WORLD_STEPS", "200"))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.django_db(transaction=True)
def test_what_is_promised_holds_after_each_step(seed: int) -> None:
    with open_world(seed) as world:
        world.run(STEPS)
