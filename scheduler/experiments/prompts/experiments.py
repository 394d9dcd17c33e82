"""The experiments behind ``reproduce prompts``: which runs, over which seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scheduler.experiments.prompts.lookup_quality import CANDIDATES, TaskResult, measure_lookups
from scheduler.experiments.prompts.outcome import TuningOutcome
from scheduler.experiments.prompts.policies import LANES
from scheduler.experiments.prompts.run import simulate
from scheduler.experiments.prompts.workload import LOADS, PAPER_MINUTES, WorkloadRules

#: Policies of the sweeps.
MAIN = ("printed", "repaired", "chosen", "chosen-admits", "infless", "elasticflow")
#: Values of S.
SLOS = (0.5, 1.0, 1.5)
#: Seeds that no number was chosen by start here.
UNSEEN = 1000
#: Where rules of the workload that are ours could be otherwise.
WORKLOADS: Mapping[str, WorkloadRules] = {
    "as chosen": WorkloadRules(),
    "evener arrivals": replace(WorkloadRules(), burstiness=1.0),
    "steeper bursts": replace(WorkloadRules(), burstiness=0.25),
    "shorter jobs": replace(WorkloadRules(), median_s=12.0),
    "longer jobs": replace(WorkloadRules(), median_s=27.0),
    "one GPU each": replace(WorkloadRules(), gangs={1: 1.0}),
    "wider gangs": replace(WorkloadRules(), gangs={1: 0.25, 2: 0.25, 4: 0.3, 8: 0.2}),
}
Runs = dict[tuple[str, str, float], list[TuningOutcome]]
Progress = Callable[[Iterable[Any], str], Iterable[Any]]


@dataclass(frozen=True, slots=True)
class PromptSize:
    """How much is run."""

    #: Seeds of the simulator.
    seeds: int
    #: Worlds of tasks, tasks to look up for in each, and prompts of their banks.
    worlds: int
    tasks: int
    candidates: int = CANDIDATES
    #: Minutes of arrivals of a run.
    minutes: int = PAPER_MINUTES


QUICK, FULL = PromptSize(5, 1, 12), PromptSize(20, 4, 30)


@dataclass(frozen=True, slots=True)
class PromptFindings:
    """All that was run."""

    size: PromptSize
    #: By (policy, load, S).
    sweeps: Runs
    #: Every lane at medium load, S = 1.
    ablations: Mapping[str, Sequence[TuningOutcome]]
    #: ``repaired``, ``chosen`` and ``chosen-admits`` by workload, at medium load, S = 1.
    workloads: Mapping[str, Mapping[str, Sequence[TuningOutcome]]]
    #: The same at the chosen workload, under seeds that nothing was chosen by.
    unseen: Mapping[str, Sequence[TuningOutcome]]
    lookups: Sequence[TaskResult]


def run_all(size: PromptSize, progress: Progress) -> PromptFindings:
    """Run every experiment."""
    seeds, shown = range(size.seeds), ("repaired", "chosen", "chosen-admits")
    workload = replace(WorkloadRules(), minutes=size.minutes)
    return PromptFindings(
        size=size,
        sweeps=sweep(seeds, workload, progress),
        ablations={
            policy: run_seeds(policy, seeds, workload) for policy in progress(LANES, "ablations")
        },
        workloads={
            name: {
                policy: run_seeds(policy, seeds, replace(rules, minutes=size.minutes))
                for policy in shown
            }
            for name, rules in progress(WORKLOADS.items(), "workloads")
        },
        unseen={
            policy: run_seeds(policy, range(UNSEEN, UNSEEN + size.seeds), workload)
            for policy in progress(shown, "unseen seeds")
        },
        lookups=[
            result
            for seed in progress(range(size.worlds), "lookups")
            for result in measure_lookups(seed=seed, tasks=size.tasks, candidates=size.candidates)
        ],
    )


def sweep(seeds: range, workload: WorkloadRules, progress: Progress) -> Runs:
    """Loads at S = 1, and S at medium load (figure 7)."""
    settings = [(load, 1.0) for load in LOADS] + [("medium", slo) for slo in SLOS if slo != 1.0]
    every = [(policy, load, slo) for policy in MAIN for load, slo in settings]
    return {
        (policy, load, slo): run_seeds(policy, seeds, workload, load=load, slo=slo)
        for policy, load, slo in progress(every, "sweeps")
    }


def run_seeds(
    policy: str, seeds: range, workload: WorkloadRules, *, load: str = "medium", slo: float = 1.0
) -> list[TuningOutcome]:
    """Run one setting under many seeds."""
    return [
        simulate(policy=policy, load=load, slo=slo, seed=seed, workload=workload) for seed in seeds
    ]
