"""Some seeds of the world; all that is promised holds after each of their steps."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence

import pytest

from tests.emptying import delete_all_rows
from tests.stand_in import run_stand_in
from tests.world.actors import Actor
from tests.world.exporters import Exporters
from tests.world.faults import Fault
from tests.world.gateway import Gateway
from tests.world.machines import Machines
from tests.world.seats import Express
from tests.world.vendors import Vendors
from tests.world.witnesses import Witnesses
from tests.world.world import open_world

SEEDS = [int(seed) for seed in os.environ.get("WORLD_SEEDS", "1 2").split()]
STEPS = int(os.environ.get("WORLD_STEPS", "200"))
DAYS = float(os.environ.get("WORLD_DAYS", "0"))
#: Who else there is, and what goes wrong: as ``python -m tests.world`` asks for it.
OTHERS = os.environ.get("WORLD_OTHERS", "").split()
FAULTS = [Fault[name] for name in os.environ.get("WORLD_FAULTS", "").split()] or [*Fault]
ACTORS = (Exporters, Express, Gateway, Machines, Vendors, Witnesses)
#: Seconds of new seeds at night.
NIGHT_S = 3300


def run_world(
    seed: int,
    *,
    actors: Sequence[type[Actor]] = (),
    steps: int = STEPS,
    faults: Sequence[Fault] = FAULTS,
) -> None:
    with (
        run_stand_in() as Gateway.control,
        open_world(seed, actors=actors, faults=faults) as world,
    ):
        world.run(steps, days=DAYS)
        print(f"\nseed {seed}: {world.count()}")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.django_db(transaction=True)
def test_what_is_promised_holds_after_each_step(seed: int) -> None:
    run_world(seed, actors=[one for one in ACTORS if {"all", one.__name__} & {*OTHERS}])


@pytest.mark.nightly
@pytest.mark.parametrize("actor", ACTORS)
@pytest.mark.django_db(transaction=True)
def test_it_holds_with_somebody_else_in_the_world(actor: type[Actor]) -> None:
    run_world(1, actors=[actor], steps=40)


@pytest.mark.nightly
@pytest.mark.django_db(transaction=True)
def test_it_holds_while_disks_are_full() -> None:
    run_world(1, actors=[Exporters], faults=[Fault.DISK_FULL, Fault.DATABASE_FULL])


@pytest.mark.nightly
@pytest.mark.django_db(transaction=True)
def test_it_holds_under_seeds_that_nobody_tried() -> None:
    ends_at = time.monotonic() + NIGHT_S
    while time.monotonic() < ends_at:
        seed = random.SystemRandom().randrange(10**9)
        run_world(seed)
        delete_all_rows()
