"""What a vendor gains by quoting what is not so: more than its cost, too short a delay, too much
room. A vendor is paid its quote, so the theorems on bids say nothing of it.

``python -m scheduler.experiments.auction.vendor_lies`` prints the figures of
docs/algorithms/auction-evidence.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.log import events
from scheduler.types import Decision, LaborVendor, NodeSpec, Task, VendorCapacity

SLOTS, BIDS_A_SLOT = 40, 3
_HORIZON = 16
#: Rows a slot that each vendor can really do, and what a data set takes of it in each slot.
_ROOM, _LOAD = 6, 2


@dataclass(frozen=True, slots=True)
class VendorLie:
    """What one vendor says beside the truth; the default is the truth."""

    #: Share of its cost that it quotes on top, beyond what all do.
    markup: float = 0.0
    #: Slots that it leaves out of its delay.
    sooner_slots: int = 0
    #: Room that it states for each unit that it has.
    room: int = 1


@dataclass(frozen=True, slots=True)
class LiarsOutcome:
    """What a vendor had of one market, in units of money."""

    #: What it was paid less what its work cost it.
    profit: float
    #: What its work cost it.
    cost: float
    jobs: int
    late: int


def run_market(
    lie: VendorLie, *, vendors: int, seed: int, late_share: float, margin: float = 0.2
) -> LiarsOutcome:
    """Sell one random market in which the first vendor lies and the others do not.

    Every vendor quotes its cost and a margin. Work that was promised too soon, or beyond the room
    that there is, is delivered late, which costs its vendor a share of its quote.

    Parameters
    ----------
    vendors : int
        How many there are; with one the liar has no rival.
    late_share : float
        What a late delivery costs of the quote, 0 to 1.
    margin : float
        What all vendors ask beyond their cost, as a share of it.
    """
    rng = np.random.default_rng(seed)
    engine = Engine(ZoneRules(horizon_slots=_HORIZON, settings={"growth": 0.5}))
    for name in ("a", "b"):
        engine.transition(events.NodeJoined(NodeSpec(name, "g", 20.0, 20.0, ask=2.0)))
    for number in range(vendors):
        room = _ROOM * (lie.room if number == 0 else 1)
        engine.transition(events.VendorChanged(VendorCapacity(f"vendor-{number}", room)))
    profit = cost = 0.0
    jobs = late = 0
    busy: dict[int, int] = {}
    for slot in range(SLOTS):
        engine.transition(events.SlotAdvanced(slot))
        for bid in range(BIDS_A_SLOT):
            costs = [float(rng.uniform(2.0, 6.0)) for _ in range(vendors)]
            delays = [int(rng.integers(1, 5)) for _ in range(vendors)]
            task = _draw_task(rng, f"{slot}-{bid}", slot)
            offers = [
                LaborVendor(f"vendor-{n}", own * (1 + margin), delay, _LOAD)
                for n, (own, delay) in enumerate(zip(costs, delays, strict=True))
            ]
            stated = max(1, delays[0] - lie.sooner_slots)
            price = costs[0] * (1 + margin + lie.markup)
            offers[0] = LaborVendor("vendor-0", price, stated, _LOAD)
            decision = engine.transition(events.BidArrived(_with_offers(task, offers), slot))
            assert isinstance(decision, Decision)
            if not decision.admitted or decision.schedule is None or decision.schedule.vendor != 0:
                continue
            ready = decision.schedule.ready_slot
            assert ready is not None
            end = _work_off(busy, begin=ready - stated, slots=delays[0])
            jobs += 1
            is_late = end > ready
            late += is_late
            cost += costs[0]
            profit += price * (1 - late_share * is_late) - costs[0]
    return LiarsOutcome(profit, cost, jobs, late)


def _draw_task(rng: np.random.Generator, name: str, slot: int) -> Task:
    work = float(rng.uniform(4.0, 16.0))
    return Task(
        id=name,
        arrival_slot=slot + 1,
        deadline_slot=slot + int(rng.integers(4, 13)),
        compute_demand=work,
        memory_demand=1.0,
        bid=4.0 + work * float(rng.uniform(0.2, 2.0)),
        rates={"g": 5.0},
    )


def _with_offers(task: Task, offers: Sequence[LaborVendor]) -> Task:
    return Task(
        id=task.id,
        arrival_slot=task.arrival_slot,
        deadline_slot=task.deadline_slot,
        compute_demand=task.compute_demand,
        memory_demand=task.memory_demand,
        bid=task.bid,
        rates=task.rates,
        vendors=tuple(offers),
    )


def _work_off(busy: dict[int, int], *, begin: int, slots: int) -> int:
    """Do the work in the first slots with real room; the slot after its end."""
    slot = begin
    while slots:
        if busy.get(slot, 0) + _LOAD <= _ROOM:
            busy[slot] = busy.get(slot, 0) + _LOAD
            slots -= 1
        slot += 1
    return slot


@dataclass(frozen=True, slots=True)
class Gain:
    """What a lie changed over many markets."""

    lie: VendorLie
    vendors: int
    #: Profit with the lie less profit without, for each unit of the honest vendor's cost.
    share: float
    jobs: int
    honest_jobs: int
    late: int


def measure_gain(lie: VendorLie, *, vendors: int, markets: int, late_share: float) -> Gain:
    """Compare a lie with the truth over the same random markets."""

    def run(said: VendorLie) -> list[LiarsOutcome]:
        return [
            run_market(said, vendors=vendors, seed=seed, late_share=late_share)
            for seed in range(markets)
        ]

    lied, honest = run(lie), run(VendorLie())
    gained = sum(one.profit for one in lied) - sum(one.profit for one in honest)
    return Gain(
        lie=lie,
        vendors=vendors,
        share=gained / sum(one.cost for one in honest),
        jobs=sum(one.jobs for one in lied),
        honest_jobs=sum(one.jobs for one in honest),
        late=sum(one.late for one in lied),
    )


#: Lies of the table, and how many vendors there are.
LIES = (
    *(VendorLie(markup=markup) for markup in (-0.1, 0.1, 0.25, 0.5, 1.0)),
    VendorLie(sooner_slots=1),
    VendorLie(sooner_slots=3),
    VendorLie(room=3),
)
RIVALS = (1, 2, 4)
LATE_SHARES = (0.0, 0.2)
MARKETS = 20


def main() -> None:
    """Print the table."""
    print("| what it says | late costs it | vendors | jobs | late | gain, % of its cost |")
    print("|--|--|--|--|--|--|")
    for lie in LIES:
        for late_share in LATE_SHARES if lie.sooner_slots or lie.room > 1 else (0.0,):
            for vendors in RIVALS:
                gain = measure_gain(lie, vendors=vendors, markets=MARKETS, late_share=late_share)
                print(
                    f"| {lie} | {late_share:.0%} | {vendors} | {gain.honest_jobs} to {gain.jobs} "
                    f"| {gain.late} | {100 * gain.share:+.1f} |"
                )


if __name__ == "__main__":
    main()
