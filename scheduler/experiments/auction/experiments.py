"""Every experiment of section 5.2, as lists of days to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler.auction import Engine
from scheduler.auction.log import events
from scheduler.experiments.auction.bounds import make_capacity
from scheduler.experiments.auction.bounds.offline_program import offline_optimum
from scheduler.experiments.auction.max_form.engine import make_engine, pay_eq14
from scheduler.experiments.auction.quality import Setting, like, settings
from scheduler.experiments.auction.run import decide_days, make_rules, run_baseline, run_policy
from scheduler.experiments.auction.scenario import Deadlines, Mix, Scenario, trace_days
from scheduler.experiments.tiers.workload import Workload
from scheduler.types import Decision, Task

NAMES = ("lagrangian", "residual", "printed", "titan", "eft", "ntm")


@dataclass(frozen=True, slots=True)
class AuctionSize:
    """How much of each experiment is run."""

    seeds: int
    #: Factor on nodes and bids together.
    scale: float
    slots: int
    #: Steps towards the Lagrangian bound.
    iterations: int
    #: Seconds by the clock for each of Titan's programs; most need a tenth of it.
    titan_s: float
    #: Small instances solved to optimality, and seconds for each.
    instances: int
    optimum_s: float


QUICK = AuctionSize(2, 0.1, 48, 60, 0.05, 4, 5.0)
FULL = AuctionSize(5, 1.0, 144, 150, 0.5, 20, 30.0)
TINY = AuctionSize(1, 0.04, 12, 10, 0.05, 1, 2.0)


@dataclass(frozen=True, slots=True)
class Point:
    """One bar group of a figure."""

    figure: str
    x: str
    #: One for each seed, or one for all.
    settings: tuple[Setting, ...]

    def setting(self, seed: int) -> Setting:
        return self.settings[seed % len(self.settings)]


#: Title of each figure and what the paper says of it.
FIGURES = {
    "scale": ("Figure 4: nodes", "at 50 nodes +30.78 % over Titan, +137.35 % EFT, +155.84 % NTM"),
    "vendors": ("Figure 5: labour vendors", "welfare rises slightly with their number"),
    "capacity": ("Figure 6: GPU types", "pdFTSP best in all; A100 above A40"),
    "traces": ("Figure 7: traces", "pdFTSP best on MLaaS, Philly and Helios"),
    "dynamics": (
        "Figure 8: bids a slot",
        "at 80 +48.99 % over Titan, +151.57 % EFT, +184.94 % NTM; gains grow with load",
    ),
    "deadlines": ("Figure 9: deadlines", "pdFTSP best for every way to draw them"),
    "quality": ("Share of the Lagrangian bound", "not in the paper"),
}


def points(size: AuctionSize, traces: Sequence[Workload]) -> list[Point]:
    """Give all days to run, figure by figure."""

    def base(name: str, nodes: int = 100, bids: float = 50.0) -> Scenario:
        return Scenario(
            name,
            slots=size.slots,
            nodes=max(round(nodes * size.scale), 2),
            bids_per_slot=bids * size.scale,
        )

    def same(scenario: Scenario) -> tuple[Setting, ...]:
        return (like(scenario),)

    made = [Point("scale", str(n), same(base("scale", nodes=n))) for n in (50, 100, 150, 200)]
    made += [
        Point("vendors", str(n), same(replace(base("vendors"), vendors=n))) for n in (1, 2, 4, 8)
    ]
    mixes: tuple[Mix, ...] = ("a100", "a40", "mixed")
    made += [Point("capacity", mix, same(replace(base("capacity"), mix=mix))) for mix in mixes]
    made += [
        Point(
            "traces",
            trace.name,
            tuple(trace_setting(trace, base("traces"), seed) for seed in range(size.seeds)),
        )
        for trace in traces
    ]
    made += [Point("dynamics", str(b), same(base("dynamics", bids=b))) for b in (30, 50, 80)]
    ways: tuple[Deadlines, ...] = ("uniform", "lognormal", "tight", "loose")
    made += [
        Point("deadlines", way, same(replace(base("deadlines"), deadlines=way))) for way in ways
    ]
    made += [
        Point("quality", setting.name, (setting.with_slots(size.slots),))
        for setting in settings(scale=size.scale)
    ]
    return made


def trace_setting(trace: Workload, base: Scenario, seed: int) -> Setting:
    """Give a day of a trace, at the scenario's mean rate, after the days before it.

    Past days are as much busier or quieter as they were.
    """
    day, before = trace_days(trace, seed=seed, slots=base.slots)
    scenario = replace(base, shape="trace", profile=day)
    past = tuple(
        replace(scenario, profile=p, bids_per_slot=base.bids_per_slot * sum(p) / sum(day))
        for p in before
    )
    return Setting(scenario, past, len(past))


@dataclass(frozen=True, slots=True)
class Lie:
    """One bidder's gain when it states a share of what the job is worth to it."""

    share: float
    #: Mean gain over bidders, as a share of their worth.
    critical: float
    eq14: float


SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0)


def truthfulness(scenario: Scenario, *, bidders: int) -> tuple[list[Lie], int, int]:
    """Let bidders state something else, each from the state it met (figure 10).

    Returns
    -------
    lies : list of Lie
    critical, eq14 : int
        Profitable misreports under each payment.
    """
    tasks = scenario.day(0)
    step = max(len(tasks) // bidders, 1)
    gains: dict[tuple[bool, float], float] = {}
    profitable = {False: 0, True: 0}
    count = 0
    engine = make_engine(make_rules(scenario, "residual"))
    for node in scenario.fleet():
        engine.transition(events.NodeJoined(node))
    slot = 0
    for index, task in enumerate(tasks):
        if task.arrival_slot > slot:
            slot = task.arrival_slot
            engine.transition(events.SlotAdvanced(slot))
        if index % step == 0:
            count += 1
            stated = {share: _decide_stated(engine, task, share) for share in SHARES}
            for by_eq14 in (False, True):
                found = {s: _compute_gain(task, d, by_eq14=by_eq14) for s, d in stated.items()}
                for share, gain in found.items():
                    key = (by_eq14, share)
                    gains[key] = gains.get(key, 0.0) + gain / task.bid
                    profitable[by_eq14] += gain > found[1.0] + 1e-6 * task.bid
        engine.transition(events.BidArrived(task, slot))
    lies = [
        Lie(share, gains[False, share] / max(count, 1), gains[True, share] / max(count, 1))
        for share in SHARES
    ]
    return lies, profitable[False], profitable[True]


def _decide_stated(engine: Engine, task: Task, share: float) -> Decision:
    stated = replace(task, bid=task.bid * share)
    decision = engine.replica().transition(events.BidArrived(stated, task.arrival_slot))
    assert isinstance(decision, Decision)
    return decision


def _compute_gain(task: Task, decision: Decision, *, by_eq14: bool) -> float:
    paid = pay_eq14(decision) if by_eq14 else decision
    return task.bid - paid.payment if paid.admitted else 0.0


@dataclass(frozen=True, slots=True)
class Winner:
    """A winning bid and what it paid (figure 11)."""

    task_id: str
    bid: float
    payment: float


def rationality(scenario: Scenario, *, sample: int) -> tuple[list[Winner], int, int]:
    """Give some winners, the number of winners, and of those that paid above their bid."""
    tasks = scenario.day(0)
    result = run_policy(scenario, tasks, rules=make_rules(scenario, "residual"))
    won = [
        Winner(task.id, task.bid, decision.payment)
        for task, decision in zip(tasks, result.decisions, strict=True)
        if decision.admitted
    ]
    step = max(len(won) // sample, 1)
    return won[::step][:sample], len(won), sum(w.payment > w.bid for w in won)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Offline optimum against each policy on one small instance (figure 12)."""

    instance: int
    #: Tasks of the instance.
    tasks: int
    optimum: float
    #: HiGHS proved it to a thousandth; else it is the best bound within the time.
    proven: bool
    #: Optimum over welfare by name.
    ratios: dict[str, float]


#: Relative distance from the optimum that counts as proven.
_GAP = 1e-3


def competitive(index: int, *, time_limit_s: float) -> Ratio:
    """Compare with the offline optimum where it can be had: 2 nodes, 20 slots."""
    scenario = Scenario(
        "competitive", slots=20, nodes=2, bids_per_slot=1.2, samples=(5_000, 10_000), most_epochs=3
    )
    tasks = scenario.day(500 + index)
    past = decide_days(
        scenario,
        [scenario.day(90_000 + index), scenario.day(91_000 + index)],
        rules=make_rules(scenario, "lagrangian"),
        seed=index,
    )
    supply = make_capacity(
        scenario.fleet(), base_memory=scenario.base_memory_gb, first_slot=0, slots=scenario.slots
    )
    found = offline_optimum(tasks, supply, time_limit_s=time_limit_s, relative_gap=_GAP)
    # The optimum's upper bound, which puts no policy in too good a light.
    optimum = found.bound
    ratios: dict[str, float] = {}
    for name in NAMES:
        if name in ("titan", "eft", "ntm"):
            result = run_baseline(name, scenario, tasks, seed=index, time_limit_s=1.0)
        else:
            result = run_policy(
                scenario,
                tasks,
                rules=make_rules(scenario, name),
                past_days=past if name == "lagrangian" else (),
                seed=index,
            )
        ratios[name] = optimum / result.welfare if result.welfare > 0 else float("inf")
    return Ratio(index, len(tasks), optimum, found.optimal, ratios)
