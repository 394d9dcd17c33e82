"""Single runs of days, apart from the figures they serve, so that each is made once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import scheduler.auction
from scheduler.experiments.auction.bounds import lagrangian_bound, make_capacity
from scheduler.experiments.auction.quality import Setting
from scheduler.experiments.auction.run import decide_days, make_rules, run_baseline, run_policy
from scheduler.experiments.auction.scenario import Scenario
from scheduler.types import Task

POLICIES = ("printed", "residual", "lagrangian")
BOUND = "bound"


@dataclass(frozen=True, slots=True)
class Effort:
    """What a run may cost."""

    #: Steps towards the Lagrangian bound.
    iterations: int
    #: Seconds for each of Titan's programs.
    titan_s: float


@dataclass(frozen=True, slots=True)
class DayRun:
    """One policy, baseline or bound on one day.

    Figures whose days are the same but for the name share their runs.
    """

    #: A policy, a baseline or ``bound``.
    what: str
    #: Named alike whatever its figure.
    setting: Setting
    seed: int

    @property
    def label(self) -> str:
        """Say what it is, for the reader of the file."""
        scenario = self.setting.scenario
        return (
            f"{self.what}, seed {self.seed}: {scenario.nodes} {scenario.mix} nodes, "
            f"{scenario.bids_per_slot:g} bids a slot, {scenario.shape}, {scenario.deadlines}"
        )

    def key(self, effort: Effort) -> str:
        """Name the run by all that its result follows from, the sources included."""
        digest = source_digest(solves=self.what == "lagrangian")
        text = repr((self.what, self.setting, self.seed, effort, digest))
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def day_run(what: str, setting: Setting, seed: int) -> DayRun:
    """Give a run with everything left out that it does not depend on."""
    past = tuple(replace(s, name="") for s in setting.past) if what == "lagrangian" else ()
    days = setting.past_days if past else 0
    return DayRun(what, Setting(replace(setting.scenario, name=""), past, days), seed)


def carry_out(run: DayRun, effort: Effort) -> dict[str, Any]:
    """Run it; plain values, fit to be written down."""
    scenario, seed = run.setting.scenario, run.seed
    tasks = _day(scenario, seed)
    if run.what == BOUND:
        supply = make_capacity(
            scenario.fleet(),
            base_memory=scenario.base_memory_gb,
            first_slot=0,
            slots=scenario.slots,
        )
        return {"value": lagrangian_bound(tasks, supply, iterations=effort.iterations).value}
    if run.what in POLICIES:
        rules = make_rules(scenario, run.what)
        past = decide_days(scenario, run.setting.history(seed), rules=rules, seed=seed)
        found = run_policy(scenario, tasks, rules=rules, past_days=past, seed=seed)
    else:
        found = run_baseline(run.what, scenario, tasks, seed=seed, time_limit_s=effort.titan_s)
    return {
        "welfare": found.welfare,
        "admitted": found.admitted,
        "bids": found.bids,
        "revenue": found.revenue,
        "seconds": found.seconds,
    }


@lru_cache(maxsize=4)
def _day(scenario: Scenario, seed: int) -> list[Task]:
    return scenario.day(seed)


@cache
def source_digest(*, solves: bool) -> str:
    """Name the state of the code that results follow from; the solve's only where it counts."""
    found = hashlib.sha256()
    here = Path(__file__).parent
    sources = [
        *sorted(Path(scheduler.auction.__file__).parent.rglob("*.py")),
        *(here / name for name in ("days.py", "quality.py", "run.py", "scenario.py")),
    ]
    for path in sources:
        if solves or path.parent.name != "prices":
            found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()[:16]
