"""The experiments behind ``reproduce tiers``: which runs, over which seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.experiments.tiers import clairvoyant
from scheduler.experiments.tiers.clairvoyant import simulate_clairvoyant
from scheduler.experiments.tiers.loop import run_loop
from scheduler.experiments.tiers.policies import POLICIES, corrected, improved
from scheduler.experiments.tiers.run import TierOutcome, outcome, prepare, simulate
from scheduler.experiments.tiers.supply import SupplyRules
from scheduler.experiments.tiers.traces import read_trace
from scheduler.experiments.tiers.workload import (
    OwnerRules,
    Workload,
    calibrated_burst,
    seren_like,
    steady_state,
)
from scheduler.tiers.rules import TierRules

#: The capped setting of the paper.
LIMITED = 30
CAPS: tuple[int | None, ...] = (LIMITED, None)
#: Jobs of one window of a trace; every seed takes another stretch.
WINDOW_JOBS = 2000
#: What ``improved`` is held against: the paper's policy repaired, a threshold that never moves,
#: and workers on demand without a serverless tier.
BASES = ("corrected", "fixed-600", "sjf-np")
#: A move as it is measured here (docs/benchmarks.md: 0.7 to 10 s), at the figures that a zone
#: begins with. The paper's takes 280 s.
HERE = replace(TierRules(), checkpoint_s=5.0, restore_s=10.0)
#: Seeds of a whole trace, whose jobs are the same each time.
WHOLE_SEEDS = 5
#: Fixed thresholds of the sensitivity plot, seconds.
THRESHOLDS = (30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 2400.0, 3600.0, 7200.0)
#: Prices of delay of the Pareto plot, dollars per hour.
DELAY_PRICES = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
#: Runs by (policy, cap).
Runs = dict[tuple[str, int | None], list[TierOutcome]]
Progress = Callable[[Iterable[Any], str], Iterable[Any]]


@dataclass(frozen=True, slots=True)
class TierSetting:
    """One row of the quality table."""

    name: str
    workload: Callable[[int], Workload]
    owners: OwnerRules = field(default_factory=OwnerRules)
    rules: TierRules = HERE
    supply: SupplyRules = field(default_factory=SupplyRules)
    #: Fewer than others, where one run is long.
    most_seeds: int | None = None
    #: Those of ``BASES`` that can run it under every cap.
    bases: tuple[str, ...] = BASES


def settings(traces: Sequence[Path]) -> tuple[TierSetting, ...]:
    """Workloads ``improved`` and ``corrected`` meet; traces add one row each."""
    soon, hazards = (
        OwnerRules(die_early=0.4, dying="soon"),
        SupplyRules(vanish=0.1, mean_life_h=24.0),
    )

    def saturated(seed: int) -> Workload:
        return steady_state(seed=seed, jobs=3000, load_gpus=60.0)

    own = (
        TierSetting("burst", lambda seed: calibrated_burst(seed=seed)),
        TierSetting("steady, 20 GPUs busy", lambda seed: steady_state(seed=seed)),
        TierSetting("saturated, 60 GPUs asked", saturated),
        TierSetting(
            "burst, 40 % die anywhere",
            lambda seed: calibrated_burst(seed=seed),
            OwnerRules(die_early=0.4),
        ),
        TierSetting("burst, 40 % die soon", lambda seed: calibrated_burst(seed=seed), soon),
        TierSetting(
            "burst, 70 % die soon",
            lambda seed: calibrated_burst(seed=seed),
            replace(soon, die_early=0.7),
        ),
        TierSetting("steady, 40 % die soon", lambda seed: steady_state(seed=seed, jobs=3000), soon),
        TierSetting("saturated, 40 % die soon", saturated, soon),
        TierSetting(
            "burst, moves take 280 s", lambda seed: calibrated_burst(seed=seed), rules=TierRules()
        ),
        TierSetting(
            "steady, moves take 280 s", lambda seed: steady_state(seed=seed), rules=TierRules()
        ),
        TierSetting("saturated, moves take 280 s", saturated, rules=TierRules()),
        TierSetting(
            "burst, nodes fail and offers vanish",
            lambda seed: calibrated_burst(seed=seed),
            supply=hazards,
        ),
        TierSetting("saturated, nodes fail and offers vanish", saturated, supply=hazards),
        TierSetting(
            "gangs of up to 64 GPUs",
            lambda seed: seren_like(seed=seed, jobs=WINDOW_JOBS),
            # Without a serverless tier a gang above the cap never runs.
            bases=("corrected", "fixed-600"),
        ),
    )
    return (*own, *(row for path in traces for row in _trace_settings(path, soon)))


def _trace_settings(path: Path, soon: OwnerRules) -> tuple[TierSetting, ...]:
    whole = read_trace(path).one_gpu_each()

    def part(seed: int) -> Workload:
        return window(whole, seed=seed)

    windows = (
        TierSetting(f"trace {path.stem}", part),
        TierSetting(f"trace {path.stem}, 40 % die soon", part, soon),
    )
    if len(whole) <= WINDOW_JOBS:
        return windows
    slow = TierSetting(f"trace {path.stem}, moves take 280 s", part, rules=TierRules())
    # The seed draws deadlines, start-up times and the market.
    return (
        *windows,
        slow,
        TierSetting(f"trace {path.stem}, whole", lambda _: whole, most_seeds=WHOLE_SEEDS),
    )


def window(workload: Workload, *, seed: int, jobs: int = WINDOW_JOBS) -> Workload:
    """A stretch of consecutive jobs of a trace, chosen by the seed."""
    if len(workload) <= jobs:
        return workload
    first = int(np.random.default_rng([seed, 5]).integers(0, len(workload) - jobs))
    part = slice(first, first + jobs)
    arrive = workload.arrive_s[part]
    given = workload.given_due_s
    return Workload(
        workload.name,
        arrive - arrive[0],
        workload.duration_s[part],
        workload.gpus[part],
        None if given is None else given[part] - arrive[0],
    )


def compare(seeds: int, progress: Progress) -> Runs:
    """Every policy on the calibrated burst, capped and not."""
    runs: Runs = {}
    pairs = [
        (name, cap) for name in POLICIES for cap in CAPS if cap or not name.endswith("-static")
    ]
    for name, cap in progress(pairs, "policies"):
        runs[name, cap] = [
            simulate(workload=calibrated_burst(seed=seed), policy=name, seed=seed, cap=cap)
            for seed in range(seeds)
        ]
    return runs


def quality(rows: Sequence[TierSetting], seeds: int, progress: Progress) -> Mapping[str, Runs]:
    """``improved``, its bases and the clairvoyant under common seeds."""
    found: dict[str, Runs] = {}
    for row in progress(rows, "workloads"):
        runs: Runs = {(name, cap): [] for name in ("improved", *row.bases) for cap in CAPS}
        ideal: list[TierOutcome] = []
        for seed in range(min(seeds, row.most_seeds or seeds)):
            workload = row.workload(seed)
            ideal.append(
                simulate_clairvoyant(
                    workload=workload,
                    seed=seed,
                    rules=row.rules,
                    owners=row.owners,
                    supply=row.supply,
                )
            )
            for (name, cap), kept in runs.items():
                kept.append(
                    simulate(
                        workload=workload,
                        policy=name,
                        seed=seed,
                        cap=cap,
                        rules=row.rules,
                        owners=row.owners,
                        supply=row.supply,
                    )
                )
        found[row.name] = runs | {(clairvoyant.NAME, None): ideal}
    return found


def sweep(seeds: int, progress: Progress) -> dict[str, list[tuple[float, list[TierOutcome]]]]:
    """Fixed thresholds and prices of delay, on the capped burst."""
    found: dict[str, list[tuple[float, list[TierOutcome]]]] = {"threshold": [], "delay price": []}
    for seconds in progress(THRESHOLDS, "thresholds"):
        low, high = min(60.0, seconds), max(3600.0, seconds)
        rules = replace(TierRules(), threshold_s=seconds, threshold_min_s=low, threshold_max_s=high)
        choice = corrected(rules, LIMITED)._replace(adaptive=False)
        found["threshold"].append((seconds, _bursts(choice, seeds)))
    for price in progress(DELAY_PRICES, "delay prices"):
        choice = improved(replace(TierRules(), delay_usd_per_h=price), LIMITED)
        # The whole surplus is offered, so that the price of delay alone decides.
        found["delay price"].append((price, _bursts(choice._replace(share=1.0), seeds)))
    return found


def _bursts(choice: Any, seeds: int) -> list[TierOutcome]:
    return [
        simulate(workload=calibrated_burst(seed=seed), policy=choice, seed=seed, cap=LIMITED)
        for seed in range(seeds)
    ]


def dynamics(policy: str, cap: int | None, seed: int = 0) -> tuple[Any, TierOutcome]:
    """The tick-by-tick series of one run (figure 10), and its outcome."""
    workload = calibrated_burst(seed=seed)
    world = prepare(workload=workload, policy=policy, seed=seed, cap=cap, record_ticks=6000)
    run_loop(world, len(workload))
    series = world.series[: int(world.tally[0]["ticks"])]
    return series, outcome(world, policy=policy, workload=workload.name, seed=seed, cap=cap)
