"""Some seeds of the world; all that is promised holds after each of their steps."""

from __future__ import annotations

import os
import random
import time

import pytest

from tests.emptying import delete_all_rows
from tests.world.world import open_world

SEEDS = [int(seed) for seed in os.environ.get("WORLD_SEEDS", "1 2").split()]
STEPS = int(os.environ.get("WORLD_STEPS", "200"))
#: Whether owners have adapters exported too, as at night.
EXPORTS = bool(os.environ.get("WORLD_EXPORTS"))
#: Seconds of new seeds at night.
NIGHT_S = 3300


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.django_db(transaction=True)
def test_what_is_promised_holds_after_each_step(seed: int) -> None:
    with open_world(seed, exports=EXPORTS) as world:
        world.run(STEPS)
    print(f"\nseed {seed}: {world.count()}")


@pytest.mark.nightly
@pytest.mark.django_db(transaction=True)
def test_it_holds_under_seeds_that_nobody_tried() -> None:
    ends_at = time.monotonic() + NIGHT_S
    while time.monotonic() < ends_at:
        seed = random.SystemRandom().randrange(10**9)
        with open_world(seed, exports=True) as world:
            world.run(STEPS)
        print(f"\nseed {seed}: {world.count()}")
        delete_all_rows()
