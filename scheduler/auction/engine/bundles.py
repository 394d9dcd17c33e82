"""Bundles: bids that all win or all lose, and what they cost together.

The bids of a bundle are planned one after another, each with the exact search that decides single
bids, in the room that the bids before it leave; so k single bids that come at once pay no less.
Plans for an earlier deadline also keep a later one. So the cheapest of all deadlines up to the
bundle's own is taken, and a later deadline never costs more. So that no bundle takes the lane long,
it is the cheapest of at most ``MOST_TRIED`` different plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum, inf

from scheduler.auction.engine.decide import admit, refuse
from scheduler.auction.engine.payment import make_payment_rule
from scheduler.auction.engine.receipts import OpenBundle
from scheduler.auction.engine.zone_state import ZoneState
from scheduler.auction.log.events import BundleArrived
from scheduler.auction.search.task_plan import TaskPlan
from scheduler.auction.search.task_search import MARGIN
from scheduler.types import BundleQuote, Decision, PriceParts, PricePoint, Refusal, Task

#: Deadlines with different plans that are looked at for one bundle.
MOST_TRIED = 16


@dataclass(frozen=True, slots=True)
class BundlePlan:
    """Plans of a bundle's bids, found for one deadline."""

    #: In the order of the bids.
    plans: tuple[TaskPlan, ...]
    #: Their prices, each rounded up to whole units.
    parts: tuple[PriceParts, ...]
    #: The deadline that each was searched for.
    deadline_slot: int

    @property
    def price(self) -> float:
        return fsum(parts.total for parts in self.parts)

    @property
    def finish_slot(self) -> int:
        return max(plan.schedule.finish_slot for plan in self.plans)


def decide_bundle(zone: ZoneState, event: BundleArrived) -> Decision:
    """Decide whether the bids of a bundle win; they are entered next, and reserve their cells."""
    tasks = [arrival.task for arrival in event.arrivals]
    slot = event.arrivals[0].slot
    found = plan_bundle(zone, tasks, slot)
    worth = fsum(task.bid for task in tasks)
    price = None if found is None else found.price
    admitted = price is not None and worth > price
    refusal = None
    if not admitted:
        refusal = _find_refusal(zone, tasks, slot) if price is None else Refusal.PRICE
    zone.bundle = OpenBundle(
        bundle_id=event.bundle_id,
        task_ids=tuple(task.id for task in tasks),
        deadline_slot=tasks[0].deadline_slot if found is None else found.deadline_slot,
        refusal=refusal,
    )
    return Decision(
        task_id=event.bundle_id,
        admitted=admitted,
        payment=price if price is not None and admitted else 0.0,
        surplus=None if price is None else worth - price,
        schedule=None,
        parts=None if found is None else add_parts(found.parts),
        refusal=refusal,
        winning_price=price,
    )


def decide_member(zone: ZoneState, bundle: OpenBundle, task: Task, slot: int) -> Decision:
    """Decide the next bid of a bundle as the bundle was decided.

    Raises
    ------
    ValueError
        If the bundle won and the bid has no plan: it is not the one that was planned.
    """
    if bundle.refusal is not None:
        return refuse(zone, task, bundle.refusal)
    plan = zone.search(task, slot).find_plan(bundle.deadline_slot)
    if plan is None:
        raise ValueError(f"bid {task.id} has no plan in bundle {bundle.bundle_id}")
    return admit(zone, task, plan, make_payment_rule(zone.rules, task).parts(plan.parts))


def plan_bundle(zone: ZoneState, tasks: Sequence[Task], slot: int) -> BundlePlan | None:
    """Find the cheapest plans of all tasks by their deadline, or by any earlier one.

    Parameters
    ----------
    zone : ZoneState
        Left as it is.
    tasks : sequence of Task
        Of one deadline.
    slot : int
        First slot that they may use, besides their own arrival.
    """
    deadline = min(tasks[0].deadline_slot, zone.grid.horizon.last_slot)
    floor = _LeastPrices(zone, tasks, slot)
    best: BundlePlan | None = None
    for _ in range(MOST_TRIED):
        least = floor.at(deadline)
        if least == inf or (best is not None and least >= best.price):
            break
        found = _plan_in_turn(zone, tasks, slot, deadline)
        if found is not None and (best is None or found.price < best.price):
            best = found
        # Plans that end earlier are the same for all deadlines from their end on.
        deadline = (deadline if found is None else found.finish_slot) - 1
    return best


def quote_bundle(
    zone: ZoneState, tasks: Sequence[Task], slot: int, *, position: int
) -> BundleQuote:
    """Give the price of a bundle now and by deadline, reserving nothing."""
    found = plan_bundle(zone, tasks, slot)
    return BundleQuote(
        schedules=() if found is None else tuple(plan.schedule for plan in found.plans),
        parts=() if found is None else found.parts,
        refusal=_find_refusal(zone, tasks, slot) if found is None else None,
        curve=_trace_curve(zone, tasks, slot),
        position=position,
    )


def add_parts(parts: Sequence[PriceParts]) -> PriceParts:
    """Add prices up part by part."""
    return PriceParts(
        vendor=fsum(of.vendor for of in parts),
        operational=fsum(of.operational for of in parts),
        compute=fsum(of.compute for of in parts),
        memory=fsum(of.memory for of in parts),
        rounding=fsum(of.rounding for of in parts),
        fee=fsum(of.fee for of in parts),
        card=fsum(of.card for of in parts),
        tax=fsum(of.tax for of in parts),
    )


def _plan_in_turn(
    zone: ZoneState, tasks: Sequence[Task], slot: int, deadline: int
) -> BundlePlan | None:
    """Plan the tasks one after another for a deadline; ``None`` if one finds no room."""
    tried = zone.copy()
    plans: list[TaskPlan] = []
    for task in tasks:
        plan = tried.search(task, slot).find_plan(deadline)
        if plan is None:
            return None
        tried.take(task, plan)
        plans.append(plan)
    parts = tuple(
        make_payment_rule(zone.rules, task).parts(plan.parts)
        for task, plan in zip(tasks, plans, strict=True)
    )
    return BundlePlan(plans=tuple(plans), parts=parts, deadline_slot=deadline)


class _LeastPrices:
    """What a bundle costs at least by a deadline: each of its tasks as if the others were not."""

    def __init__(self, zone: ZoneState, tasks: Sequence[Task], slot: int) -> None:
        last = zone.grid.horizon.last_slot
        alike: dict[int, int] = {}
        kinds: list[Task] = []
        for task in tasks:
            needs = replace(task, id="", bid=0.0)
            if needs not in kinds:
                kinds.append(needs)
            kind = kinds.index(needs)
            alike[kind] = alike.get(kind, 0) + 1
        #: How many tasks are of a kind, how one pays, and its cost by deadline.
        self._curves = [
            (
                alike[kind],
                make_payment_rule(zone.rules, task),
                zone.search(task, slot).trace_price_curve(first=slot, last=last),
            )
            for kind, task in enumerate(kinds)
        ]

    def at(self, deadline: int) -> float:
        """Give it, a hair lower than it adds up to; infinite where one task has no plan."""
        total = 0.0
        for count, rule, curve in self._curves:
            prices = [price for end, price in curve if end <= deadline]
            if not prices:
                return inf
            total += count * rule.least(prices[-1])
        return total * (1.0 - MARGIN * 1e-3)


def _trace_curve(zone: ZoneState, tasks: Sequence[Task], slot: int) -> tuple[PricePoint, ...]:
    """Give the price by deadline, where it falls."""
    deadline = zone.grid.horizon.last_slot
    # What is found on the way back: the end of the plans and their price, infinite without plans.
    ends: list[tuple[int, float]] = []
    floor = _LeastPrices(zone, tasks, slot)
    while floor.at(deadline) < inf:
        found = _plan_in_turn(zone, tasks, slot, deadline)
        if found is None:
            ends.append((deadline, inf))
        else:
            ends.append((found.finish_slot, found.price))
            deadline = found.finish_slot
        deadline -= 1
    curve: list[PricePoint] = []
    for place in reversed(range(len(ends))):
        end = ends[place][0]
        # As a decision at that deadline looks back from it.
        price = min(price for _, price in ends[place : place + MOST_TRIED])
        if price < inf and (not curve or price < curve[-1].price):
            curve.append(PricePoint(deadline_slot=end, price=price, finish_slot=end))
    return tuple(curve)


def _find_refusal(zone: ZoneState, tasks: Sequence[Task], slot: int) -> Refusal:
    """Say why a bundle has no plan: by its first task that has none even alone, else for room."""
    for task in tasks:
        search = zone.search(task, slot)
        if search.find_plan(task.deadline_slot) is None:
            return search.find_refusal()
    return Refusal.CAPACITY
