"""Small exact markets: every start-up time is a constant, every offer one price."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from scheduler.experiments.tiers.choices import Choice
from scheduler.experiments.tiers.loop import run_loop
from scheduler.experiments.tiers.policies import improved
from scheduler.experiments.tiers.run import TierOutcome, outcome, prepare
from scheduler.experiments.tiers.state import RunState
from scheduler.experiments.tiers.supply import SupplyRules
from scheduler.experiments.tiers.workload import Workload
from scheduler.tiers.rules import TierRules


def jobs(*rows: Sequence[float]) -> Workload:
    """Jobs of (arrival, duration[, gpus])."""
    table = [(*row, 1.0)[:3] for row in rows]
    arrive, duration, gpus = (np.array(column, dtype=float) for column in zip(*table, strict=True))
    return Workload("by hand", arrive, duration, gpus.astype(np.int64))


def market(*, offers: int = 0, price: float = 1.0, boot_s: float = 40.0) -> SupplyRules:
    return SupplyRules(
        offers=offers,
        price_usd_per_h=(price, price, price),
        serverless_boot_s=(4.0, 0.0),
        marketplace_boot_s=(boot_s, 0.0),
        conventional_boot_s=(200.0, 0.0),
        restlessness=0.0,
        leaves=0.0,
        returns=0.0,
    )


def on_serverless_first(cap: int | None = None) -> Choice:
    """Improved where no job begins on a worker: all are probed, and move as often as it pays."""
    return improved(TierRules(), cap)._replace(
        direct=False, holds=False, probe_s=30.0, most_pause_s=math.inf
    )


def ready(
    policy: object,
    workload: Workload,
    *,
    cap: int | None = None,
    supply: SupplyRules | None = None,
    lives_s: Sequence[float] = (),
    luck: Sequence[float] = (),
    record_ticks: int = 0,
    **rules: object,
) -> RunState:
    """A world before its first event, with node lives and vanishing offers by hand."""
    world = prepare(
        workload=workload,
        policy=policy,
        seed=0,
        cap=cap,
        supply=supply or market(),
        record_ticks=record_ticks,
        **rules,
    )
    if lives_s:
        world = world._replace(supply=world.supply._replace(lives_s=np.array(lives_s)))
    if luck:
        world = world._replace(supply=world.supply._replace(luck=np.array(luck), vanish=0.5))
    return world


def finished(world: RunState) -> TierOutcome:
    run_loop(world, len(world.jobs))
    return outcome(world, policy="by hand", workload="by hand", seed=0, cap=None)
