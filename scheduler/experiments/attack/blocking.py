"""Room that is bought early and given back late: what it costs the others, and who does it.

On days of three zones an owner buys about half of the room of six slots, five slots before they
begin, at any price, and gives all of it back in the slot before the first of them. The others' loss
of welfare is held against what the owner paid for nothing: the price less what went back at once
(``scheduler.auction.engine.give_backs``) and as its cells were sold again (``returned_cells``).
Solves know the room that is taken, and not the bids that took it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from scheduler.auction import Engine
from scheduler.auction.log import events
from scheduler.auction.log.outcomes import GridChange, Outcome, ReleasedCells
from scheduler.auction.prices import Settings
from scheduler.experiments.attack.decoys import AttackedZone, DecoySize, decide_history, make_zones
from scheduler.experiments.attack.findings import Finding, Measure
from scheduler.experiments.auction.run import make_rules, run_policy
from scheduler.types import Decision, Task

QUICK = DecoySize(days=4, slots=24, futures=2)
#: The harm of a day is as noisy as its prices: ten days could tell nothing.
FULL = DecoySize(days=360, slots=24, futures=2)
#: Of the room of so many slots, the share that is blocked, and how long before it is bought.
SHARE, BLOCKED, AHEAD = 0.54, 6, 5
#: Slots from the begin of one block to that of the next.
EVERY = 12
#: Rent of cells that begin within so many slots waits, as in the market.
LATE_SLOTS = 4
#: A bid that wins if there is a plan.
_ANY_PRICE = 1e15


@dataclass(slots=True)
class Blocker:
    """One owner that blocks room again and again, as far as the day has come."""

    #: Like the jobs of the day: rates and memory of some by turns.
    models: list[Task]
    #: The slots in which blocks begin.
    begins: tuple[int, ...]
    paid: float = 0.0
    refunded: float = 0.0
    resold: float = 0.0
    _held: list[tuple[Task, Decision]] = field(default_factory=list[tuple[Task, Decision]])
    _made: int = 0

    def act(self, engine: Engine, slot: int, changed: Outcome) -> None:
        """Do what is due as a slot begins: note what was sold again, give back, buy."""
        assert isinstance(changed, GridChange)
        self.resold += sum(one.rent for one in changed.sold_again)
        if slot + 1 in self.begins:
            self._give_back(engine, slot)
        for begin in self.begins:
            if slot == begin - AHEAD:
                self._buy(engine, slot, begin)

    def _buy(self, engine: Engine, slot: int, begin: int) -> None:
        for gpu_type in sorted({node.gpu_type for node in engine.nodes}):
            alike = [node for node in engine.nodes if node.gpu_type == gpu_type]
            wanted = SHARE * sum(node.compute_capacity for node in alike)
            while wanted > 0.0:
                task = self._make_task(gpu_type, begin)
                decision = engine.transition(events.BidArrived(task, slot))
                assert isinstance(decision, Decision)
                if not decision.admitted:
                    break
                self.paid += decision.payment
                self._held.append((task, decision))
                wanted -= task.rates[gpu_type]

    def _make_task(self, gpu_type: str, begin: int) -> Task:
        model = self.models[self._made % len(self.models)]
        self._made += 1
        rate = model.rates[gpu_type]
        return replace(
            model,
            id=f"block-{self._made}",
            owner="blocker",
            vendors=(),
            bid=_ANY_PRICE,
            rates={gpu_type: rate},
            arrival_slot=begin,
            deadline_slot=begin + BLOCKED - 1,
            compute_demand=BLOCKED * rate,
        )

    def _give_back(self, engine: Engine, slot: int) -> None:
        for task, decision in self._held:
            assert decision.schedule is not None
            back = engine.transition(
                events.CellsReleased(
                    task.id,
                    decision.schedule.cells,
                    rest=replace(task, bid=0.0),
                    paid=math.floor(decision.payment),
                    slot=slot,
                )
            )
            assert isinstance(back, ReleasedCells)
            self.refunded += back.refund or 0
        self._held.clear()


class BlockedDay(NamedTuple):
    """What blocking came to on a day, as shares of all that is paid on it without."""

    #: The others' loss of welfare.
    harm: float
    #: What the blocker paid and did not get back.
    cost: float
    #: The cost less the harm.
    net: float
    #: What the others pay more.
    others_payments: float
    #: What the blocker paid before anything went back.
    bought: float


def run(size: DecoySize) -> Iterator[Finding]:
    """Block room on the days of each zone."""
    for zone in make_zones(size):
        days = [measure_day(zone, seed=seed, size=size) for seed in range(size.days)]
        found = {
            name: Measure.of(column)
            for name, column in zip(BlockedDay._fields, zip(*days, strict=True), strict=True)
        }
        yield Finding(
            experiment="blocking",
            case=f"half of six slots given back one slot before, {zone.name}",
            measures=found,
            goal="it costs its harm: the cost less the harm is not below zero",
            verdict=found["net"].judge(least=0.0),
        )


def measure_day(zone: AttackedZone, *, seed: int, size: DecoySize) -> BlockedDay:
    """Run a day without and with blocks."""
    day = zone.day(seed)
    begins = tuple(range(AHEAD + 1 + seed % EVERY, size.slots - BLOCKED, EVERY))
    blocker = Blocker(day[:50], begins)
    (calm, calm_paid), (blocked, blocked_paid) = (
        _run_day(zone, day, seed=seed, size=size, blocker=one) for one in (None, blocker)
    )
    harm = (calm - blocked) / calm_paid
    cost = (blocker.paid - blocker.refunded - blocker.resold) / calm_paid
    return BlockedDay(
        harm=harm,
        cost=cost,
        net=cost - harm,
        others_payments=blocked_paid / calm_paid - 1.0,
        bought=blocker.paid / calm_paid,
    )


def _run_day(
    zone: AttackedZone, day: list[Task], *, seed: int, size: DecoySize, blocker: Blocker | None
) -> tuple[float, float]:
    """Give the welfare and the payments of the day's own bids."""
    found = run_policy(
        zone.scenario,
        day,
        rules=replace(make_rules(zone.scenario, "lagrangian"), late_slots=LATE_SLOTS),
        past_days=decide_history(zone, seed=seed, size=size),
        seed=seed,
        settings=Settings(futures=size.futures),
        act=None if blocker is None else blocker.act,
    )
    return found.welfare, found.revenue
