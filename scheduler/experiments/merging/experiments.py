"""The experiments behind ``reproduce merging``: which runs, over which seeds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from scheduler.experiments.merging.instances import draw_instance
from scheduler.experiments.merging.policies import POLICIES, TaskMerger
from scheduler.experiments.merging.run import MergingOutcome, simulate
from scheduler.experiments.merging.task_merger import CHOSEN, REPAIRED, merge_tasks
from scheduler.experiments.merging.transfer import WORLDS
from scheduler.experiments.merging.workload import Jobs, Mix, fine_tuning_day, jobs_of_trace
from scheduler.experiments.tiers.experiments import window
from scheduler.experiments.tiers.traces import read_trace

#: GPUs of the simulated cluster: 60 servers of four (section 7.1).
GPUS = 240
NAMES = (
    "tiresias", "themis-like", "srtf", "optimus-like", "no-merging", "ymir-runnable",
    "ymir-repaired", "ymir-chosen", "warm-starts",
)  # fmt: skip
#: What the sweeps compare.
SWEPT = ("no-merging", "ymir-chosen", "warm-starts")
NOISY = ("no-merging", "ymir-repaired", "ymir-chosen")
MODES = ("no-merging", "ymir-temporal", "ymir-spatial", "ymir-repaired")
#: Jobs of one window of a trace.
WINDOW_JOBS = 1000


@dataclass(frozen=True, slots=True)
class MergingSize:
    """How much is run."""

    jobs: int
    seeds: int
    #: Jobs of the runs of a sweep.
    swept_jobs: int
    loads: tuple[float, ...]
    #: Seconds of a context switch, shares of related jobs, errors of predictions.
    switches_s: tuple[float, ...]
    shares: tuple[float, ...]
    noises: tuple[float, ...]
    #: Jobs of the instances the solver is timed on, and the most that are given every pair
    #: when all of them are new: 240 make a million columns.
    solver_jobs: tuple[int, ...]
    all_pairs_jobs: int
    #: Seconds it may take for one of them.
    solver_s: float


QUICK = MergingSize(
    jobs=200,
    seeds=3,
    swept_jobs=120,
    loads=(1.0, 2.0),
    switches_s=(0.0, 20.0, 70.0, 300.0),
    shares=(0.0, 0.5, 1.0),
    noises=(0.0, 0.4, 0.8),
    solver_jobs=(60, 120, 240),
    all_pairs_jobs=60,
    solver_s=10.0,
)
FULL = MergingSize(
    jobs=1500,
    seeds=10,
    swept_jobs=600,
    loads=(1.0, 1.5, 2.0),
    switches_s=(0.0, 5.0, 20.0, 70.0, 150.0, 300.0),
    shares=(0.0, 0.25, 0.5, 0.75, 1.0),
    noises=(0.0, 0.2, 0.4, 0.6, 0.8),
    solver_jobs=(60, 120, 240, 480),
    all_pairs_jobs=120,
    solver_s=60.0,
)


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation."""

    policy: str
    seed: int
    jobs: int
    world: str = "measured"
    load: float = 1.0
    mix: Mix = field(default_factory=Mix)
    noise: float = 0.0
    same_data_merges: bool = True
    #: Instead of the policy's own.
    switch_s: float | None = None
    trace: Path | None = None


@dataclass(frozen=True, slots=True)
class RunPoint:
    """A run and its place in a figure."""

    figure: str
    x: str
    run: Run


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one instance took."""

    form: str
    jobs: int
    fresh: float
    seed: int
    pairs: int
    columns: int
    seconds: float
    proven: bool
    #: Objective over the bound.
    gap: float


def list_points(size: MergingSize, traces: Sequence[Path]) -> list[RunPoint]:
    """Every run of every figure; equal runs may stand in several."""
    points: list[RunPoint] = []

    def add(figure: str, x: str, names: Sequence[str], base: Run) -> None:
        for seed in range(size.seeds):
            points.extend(
                RunPoint(figure, x, replace(base, policy=name, seed=seed)) for name in names
            )

    whole = Run("", 0, size.jobs)
    swept = Run("", 0, size.swept_jobs, load=1.5)
    for world in WORLDS:
        for load in size.loads:
            add(f"policies {world}", f"{load:g}", NAMES, replace(whole, world=world, load=load))
        for noise in size.noises:
            noisy = replace(swept, world=world, noise=noise)
            add(f"noise {world}", f"{noise:g}", NOISY, noisy)
        add(f"modes {world}", "both", MODES, replace(swept, world=world))
    for seconds in size.switches_s:
        names = ("optimus-like", *SWEPT)
        add("switches", f"{seconds:g}", names, replace(swept, switch_s=seconds))
    for share in size.shares:
        for same in (True, False):
            mix = Mix(related=share, same_data=0.1 if same else 0.0)
            add(
                "related" if same else "related, no repeats", f"{share:g}", SWEPT,
                replace(swept, mix=mix, same_data_merges=same),
            )  # fmt: skip
    for families in (1, 2, 3):
        add("datasets", f"{3 * families}", SWEPT, replace(swept, mix=Mix(families=families)))
    for path in traces:
        add("traces", path.stem, NAMES, replace(whole, trace=path))
    return points


def check_traces(paths: Sequence[Path]) -> None:
    """Read each trace once.

    Raises
    ------
    TraceError
        For a file that cannot be read.
    """
    for path in paths:
        read_trace(path)


def carry_out(run: Run) -> MergingOutcome:
    """Simulate one run."""
    policy = POLICIES[run.policy]
    if run.switch_s is not None:
        decide = policy.decide
        if isinstance(decide, TaskMerger):
            decide = replace(decide, switch_s=run.switch_s)
        policy = replace(policy, decide=decide, switch_s=run.switch_s)
    return simulate(
        jobs=_jobs(run),
        policy=policy,
        world=WORLDS[run.world],
        seed=run.seed,
        gpus=GPUS,
        noise=run.noise,
        same_data_merges=run.same_data_merges,
    )


def _jobs(run: Run) -> Jobs:
    if run.trace is None:
        return fine_tuning_day(seed=run.seed, jobs=run.jobs, gpus=GPUS, load=run.load, mix=run.mix)
    part = window(read_trace(run.trace), seed=run.seed, jobs=min(run.jobs, WINDOW_JOBS))
    return jobs_of_trace(part, seed=run.seed, gpus=GPUS, mix=run.mix)


def time_solver(size: MergingSize) -> list[Timing]:
    """Seconds of one decision: every pair that gains against the best three, new and running."""
    found: list[Timing] = []
    for jobs in size.solver_jobs:
        for fresh in (1.0, 0.04):
            every = fresh < 1.0 or jobs <= size.all_pairs_jobs
            for form in (CHOSEN, REPAIRED) if every else (CHOSEN,):
                for seed in range(min(size.seeds, 3)):
                    instance = draw_instance(jobs=jobs, gpus=GPUS, fresh=fresh, seed=seed)
                    started = time.process_time()
                    merge = merge_tasks(instance, form, time_limit_s=size.solver_s)
                    seconds = time.process_time() - started
                    found.append(
                        Timing(
                            form=form.name,
                            jobs=jobs,
                            fresh=fresh,
                            seed=seed,
                            pairs=merge.pairs,
                            columns=merge.columns,
                            seconds=seconds,
                            proven=merge.optimal,
                            gap=merge.objective / merge.bound - 1.0,
                        )
                    )
    return found
