"""Owners of a sweep who send its jobs apart: what they gain against a bundle.

On days of three zones, before every so many bids, an owner has a few jobs like the next bid. The
bundle of them is priced on the zone as it is; then the same jobs are sent as single bids, at once,
in the other order, or some of them later, on copies of the zone. The owner needs all jobs, and bids
so that each wins if it has a plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from scheduler.auction import Engine
from scheduler.auction.log import events
from scheduler.auction.prices import Settings
from scheduler.experiments.attack.decoys import AttackedZone, DecoySize, decide_history, make_zones
from scheduler.experiments.attack.findings import Finding, Measure
from scheduler.experiments.auction.joint_plans import find_joint_optimum
from scheduler.experiments.auction.run import make_rules, run_policy
from scheduler.types import Decision, Task

QUICK = DecoySize(days=4, slots=24, futures=2)
FULL = DecoySize(days=6, slots=72, futures=6)
#: Jobs of a bundle, and bids from one bundle to the next.
JOBS, EVERY = 4, 10
#: Most that a split may gain on average, as a share of the bundle's price.
MOST_GAIN = 0.01
#: For each job of a bundle the slots that it waits, by what the owner does.
SPLITS: dict[str, tuple[int, ...]] = {
    "single bids at once": (0, 0, 0, 0),
    "two now, two a slot later": (0, 0, 1, 1),
    "two now, two three slots later": (0, 0, 3, 3),
    "one now, one in each of the next slots": (0, 1, 2, 3),
}
_REVERSED = "single bids at once, the last job first"
#: A bid that wins if there is a plan.
_ANY_PRICE = 1e15


@dataclass(slots=True)
class Splitter:
    """One owner that splits a bundle in one way, as far as the day has come."""

    tasks: list[Task]
    #: Slot in which each is sent.
    due: list[int]
    #: What those sent so far have paid; ``None``: one found no plan.
    paid: float | None = 0.0

    def send(self, engine: Engine, slot: int) -> None:
        """Send the jobs that are due; the zone itself learns nothing of it."""
        tried = engine.replica()
        while self.tasks and self.due[0] <= slot:
            task = replace(self.tasks.pop(0), bid=_ANY_PRICE)
            self.due.pop(0)
            decision = tried.transition(events.BidArrived(task, slot))
            assert isinstance(decision, Decision)
            if self.paid is not None:
                self.paid = self.paid + decision.payment if decision.admitted else None


@dataclass(slots=True)
class SplitTally:
    """What bundles cost and what splitting them would have brought, on one zone."""

    #: Gains by kind of split, as shares of the bundle's price.
    gains: defaultdict[str, list[float]]
    #: By how much bundles cost more than the best joint plan.
    above_optimum: list[float]


class DayWatch:
    """Looks at a day before each of its bids."""

    def __init__(self, found: SplitTally) -> None:
        self._found = found
        self._bids = 0
        self._open: list[tuple[str, float, float, Splitter]] = []

    def look(self, engine: Engine, task: Task, slot: int) -> None:
        """Price a bundle from time to time, and send what waits."""
        for _, _, _, splitter in self._open:
            splitter.send(engine, slot)
        self._bids += 1
        if self._bids % EVERY:
            return
        tasks = _make_bundle(task)
        price = engine.quote_bundle(tasks, slot=slot).price
        worth = JOBS * task.bid
        if price is None or not worth > price > 0.0:
            return
        optimum = find_joint_optimum(engine, tasks, slot=slot, known=price)
        self._found.above_optimum.append(price / optimum - 1.0)
        for name, waits in SPLITS.items():
            self._begin(engine, name, price, worth, tasks, [slot + wait for wait in waits])
        self._begin(engine, _REVERSED, price, worth, tasks[::-1], [slot] * JOBS)

    def _begin(
        self,
        engine: Engine,
        name: str,
        price: float,
        worth: float,
        tasks: Sequence[Task],
        due: Sequence[int],
    ) -> None:
        splitter = Splitter(list(tasks), list(due))
        splitter.send(engine, due[0])
        self._open.append((name, price, worth, splitter))

    def end(self) -> None:
        """Note the gains; a job that was never sent is one without a plan."""
        for name, price, worth, splitter in self._open:
            has_all = splitter.paid is not None and not splitter.tasks
            gain = price - splitter.paid if has_all and splitter.paid is not None else price - worth
            self._found.gains[name].append(gain / price)


def run(size: DecoySize) -> Iterator[Finding]:
    """Give the gains of each way to split, and how far bundles are from joint optima."""
    for zone in make_zones(size):
        found = _observe(zone, size)
        for name, gains in found.gains.items():
            measure = Measure.of(gains)
            yield Finding(
                experiment="splits",
                case=f"{name}, {zone.name}",
                measures={
                    "gain": measure,
                    "gaining": Measure.of([float(gain > 1e-9) for gain in gains]),
                },
                goal="mean gain of at most 1 % of the bundle's price",
                verdict=measure.judge(most=MOST_GAIN),
            )
        above = Measure.of(found.above_optimum)
        yield Finding(
            experiment="splits",
            case=f"price of {JOBS} jobs above the best joint plan, {zone.name}",
            measures={
                "above": above,
                "dearer": Measure.of([float(above > 1e-6) for above in found.above_optimum]),
            },
            goal="mean of at most 1 %",
            verdict=above.judge(most=MOST_GAIN),
        )


def _observe(zone: AttackedZone, size: DecoySize) -> SplitTally:
    found = SplitTally(defaultdict(list), [])
    for seed in range(size.days):
        watch = DayWatch(found)
        run_policy(
            zone.scenario,
            zone.scenario.day(seed),
            rules=make_rules(zone.scenario, "lagrangian"),
            past_days=decide_history(zone, seed=seed, size=size),
            seed=seed,
            settings=Settings(futures=size.futures),
            look=watch.look,
        )
        watch.end()
    return found


def _make_bundle(task: Task) -> list[Task]:
    """Give jobs like a bid that need ever more memory, as ranks of a sweep do."""
    return [
        replace(
            task,
            id=f"job-{n}",
            vendors=(),
            owner="splitter",
            memory_demand=task.memory_demand * (1.0 + 0.1 * n),
        )
        for n in range(JOBS)
    ]
