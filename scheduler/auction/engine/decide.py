"""Decisions and quotes: the answer to one task, from the zone as it is.

The price of a task is the cost of its cheapest schedule at prices fixed by the
events before it; it is admitted if and only if its bid is above that price, and
pays it. The house's fee is part of the price (``payment``).
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.auction.engine.payment import make_payment_rule
from scheduler.auction.engine.zone_state import ZoneState
from scheduler.auction.log.events import BidPriced
from scheduler.auction.log.outcomes import ToldPrice
from scheduler.auction.search.task_plan import TaskPlan
from scheduler.auction.search.task_search import Search
from scheduler.types import Beat, Decision, PriceParts, PricePoint, Quote, Refusal, Task

#: A later deadline and its price, or neither.
LaterDeadline = tuple[int, float] | tuple[None, None]


@dataclass(frozen=True, slots=True)
class DeadlineHint:
    """The later deadline that an earlier decision of the same bid found.

    It only narrows the search: the decision is identical without it.
    """

    deadline_slot: int | None


def decide(zone: ZoneState, task: Task, slot: int, hint: DeadlineHint | None = None) -> Decision:
    """Decide a bid; what it buys is reserved and moves prices."""
    search = zone.search(task, slot)
    later: LaterDeadline | None = None
    if hint is None or not zone.rules.refusal_hints:
        plan = search.find_plan(task.deadline_slot)
    else:
        plan, later = _search_with_hint(zone, search, task, hint)
    if plan is None:
        later = _find_later_deadline(zone, search, task) if later is None else later
        return refuse(zone, task, search.find_refusal(), later=later)
    parts = make_payment_rule(zone.rules, task).parts(plan.parts)
    if not task.bid > parts.total:
        later = _find_later_deadline(zone, search, task) if later is None else later
        return refuse(zone, task, Refusal.PRICE, plan=plan, parts=parts, later=later)
    return admit(zone, task, plan, parts)


def admit(zone: ZoneState, task: Task, plan: TaskPlan, parts: PriceParts) -> Decision:
    """Reserve a plan for a bid above its price, which it pays."""
    # Only now does the bid take part in what later prices are made of.
    zone.observe(task)
    price = parts.total
    return Decision(
        task_id=task.id,
        admitted=True,
        payment=price,
        surplus=task.bid - price,
        schedule=plan.schedule,
        parts=parts,
        winning_price=price,
        raised=zone.take(task, plan),
    )


def refuse(
    zone: ZoneState,
    task: Task,
    refusal: Refusal,
    *,
    plan: TaskPlan | None = None,
    parts: PriceParts | None = None,
    later: LaterDeadline = (None, None),
) -> Decision:
    """Refuse a bid, with its best plan and the later deadline that would win, if any."""
    price = None if parts is None else parts.total
    zone.observe(task)
    return Decision(
        task_id=task.id,
        admitted=False,
        payment=0.0,
        surplus=None if price is None else task.bid - price,
        schedule=None if plan is None else plan.schedule,
        parts=parts,
        refusal=refusal,
        winning_price=price if refusal is Refusal.PRICE else None,
        winning_deadline_slot=later[0],
        winning_deadline_price=later[1],
    )


def _search_with_hint(
    zone: ZoneState, search: Search, task: Task, hint: DeadlineHint
) -> tuple[TaskPlan | None, LaterDeadline | None]:
    """Give the plan of the deadline, and the later one if it is certainly the hint's."""
    rule = make_payment_rule(zone.rules, task)
    plan, clear, later = search.check_hint(
        hint.deadline_slot,
        deadline=task.deadline_slot,
        ceiling=rule.most_below(task.bid),
    )
    if not clear:
        return plan, None
    if hint.deadline_slot is None or later is None:
        return plan, (None, None)
    price = rule.parts(later.parts).total
    return plan, (hint.deadline_slot, price) if task.bid > price else None


def _find_later_deadline(zone: ZoneState, search: Search, task: Task) -> LaterDeadline:
    """Find the earliest later deadline at which the bid would win, and its price."""
    if not zone.rules.refusal_hints:
        return None, None
    rule = make_payment_rule(zone.rules, task)
    first = task.deadline_slot + 1
    while True:
        deadline = search.find_earliest_below(
            first=first,
            last=zone.grid.horizon.last_slot,
            ceiling=rule.most_below(task.bid),
        )
        better = None if deadline is None else search.find_plan(deadline)
        if deadline is None or better is None:
            return None, None
        price = rule.parts(better.parts).total
        if task.bid > price:
            return deadline, price
        # Bid and price are equal but for the last digits of the search's sum.
        first = deadline + 1


def tell_price(zone: ZoneState, event: BidPriced) -> ToldPrice:
    """Give the price of a bid without an amount, reserving nothing.

    Raises
    ------
    ValueError
        If its owner saw prices of another beat than this or the one before.
    """
    task = event.task
    if zone.beat is None or not is_in_time(event.beat, zone.beat, zone.rules.beats_per_slot):
        raise ValueError(f"{task.id} was to have the price of another beat")
    search = zone.search(task, event.slot)
    plan = search.find_plan(task.deadline_slot)
    if plan is None:
        return ToldPrice(task.id, None, None, None, search.find_refusal())
    parts = make_payment_rule(zone.rules, task).parts(plan.parts)
    return ToldPrice(task.id, parts.total, plan.schedule, parts)


def is_in_time(seen: Beat, now: Beat, beats_per_slot: int) -> bool:
    """Tell whether the latest beat is the one that an owner saw, or the one after it."""
    passed = (now.slot - seen.slot) * beats_per_slot + now.part - seen.part
    return 0 <= passed <= 1 and 0 <= seen.part < beats_per_slot


def quote(zone: ZoneState, task: Task, slot: int, *, position: int) -> Quote:
    """Give the price of a task now and by deadline, reserving nothing."""
    rule = make_payment_rule(zone.rules, task)
    search = zone.search(task, slot)
    plan = search.find_plan(task.deadline_slot)
    curve: list[PricePoint] = []
    for deadline, price in search.trace_price_curve(first=slot, last=zone.grid.horizon.last_slot):
        price = rule.price(price)
        # Rounding to whole units makes some treads equal to the one before.
        if not curve or price < curve[-1].price:
            # What makes a price fall is that the deadline's own slot is used.
            curve.append(PricePoint(deadline_slot=deadline, price=price, finish_slot=deadline))
    return Quote(
        schedule=None if plan is None else plan.schedule,
        parts=None if plan is None else rule.parts(plan.parts),
        refusal=search.find_refusal() if plan is None else None,
        curve=tuple(curve),
        position=position,
    )
