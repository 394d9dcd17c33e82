"""Decisions and quotes: what one task is told, from the market as it is.

The price of a task is the cost of its cheapest schedule at prices fixed by the
events before it; it is admitted if and only if its bid is above that price, and
pays it.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.auction.engine.rounding import Rounding
from scheduler.auction.engine.zone_state import Market
from scheduler.auction.search.task_search import Plan, Search
from scheduler.types import Decision, PriceParts, PricePoint, Quote, Refusal, Task

#: A later deadline and its price, or neither.
Hint = tuple[int, float] | tuple[None, None]


@dataclass(frozen=True, slots=True)
class DeadlineHint:
    """What is said to be the hint to a refused bid, by whoever decided it before.

    Only where to look: a decision is the same with every claim and without one.
    """

    deadline_slot: int | None


def decide(market: Market, task: Task, slot: int, claim: DeadlineHint | None = None) -> Decision:
    """Decide a bid; what it buys is reserved and moves prices."""
    search = market.search(task, slot)
    hint: Hint | None = None
    if claim is None or not _hints(market):
        plan = search.find_plan(task.deadline_slot)
    else:
        plan, hint = _claimed(market, search, task, claim)
    if plan is None:
        return _refuse(market, search, task, search.refusal(), None, None, hint)
    parts = Rounding(market.rules.money_quantum).parts(plan.parts)
    price = parts.total
    if not task.bid > price:
        return _refuse(market, search, task, Refusal.PRICE, plan, parts, hint)
    policy = market.policy
    if not policy.residual and not market.grid.fits(
        plan.schedule.cells, rates=dict(task.rates), memory=task.memory_demand
    ):
        return _refuse(market, search, task, Refusal.CAPACITY, plan, parts, hint)
    # Only now does the bid take part in what later prices are made of.
    market.observe(task)
    eq14 = parts.vendor + parts.compute + parts.memory
    return Decision(
        task_id=task.id,
        admitted=True,
        payment=eq14 if market.rules.pays_eq14 else price,
        surplus=task.bid - price,
        schedule=plan.schedule,
        parts=parts,
        winning_price=price,
        raised=market.take(task, plan),
    )


def _refuse(
    market: Market,
    search: Search,
    task: Task,
    refusal: Refusal,
    plan: Plan | None,
    parts: PriceParts | None,
    hint: Hint | None,
) -> Decision:
    price = None if parts is None else parts.total
    deadline, deadline_price = _later_deadline(market, search, task) if hint is None else hint
    market.observe(task)
    raises = refusal is Refusal.CAPACITY and plan is not None and market.policy.raises_before_check
    return Decision(
        task_id=task.id,
        admitted=False,
        payment=0.0,
        surplus=None if price is None else task.bid - price,
        schedule=None if plan is None else plan.schedule,
        parts=parts,
        refusal=refusal,
        winning_price=price if refusal is Refusal.PRICE else None,
        winning_deadline_slot=deadline,
        winning_deadline_price=deadline_price,
        raised=market.take(task, plan, reserve=False) if raises and plan is not None else (),
    )


def _hints(market: Market) -> bool:
    """Tell whether refused bids are told of a later deadline."""
    return market.rules.refusal_hints and market.policy.residual


def _claimed(
    market: Market, search: Search, task: Task, claim: DeadlineHint
) -> tuple[Plan | None, Hint | None]:
    """Give the plan of the deadline, and the hint if it is certain to be the claimed one."""
    rounding = Rounding(market.rules.money_quantum)
    plan, clear, later = search.check_hint(
        claim.deadline_slot,
        deadline=task.deadline_slot,
        ceiling=rounding.most_below(task.bid),
    )
    if not clear:
        return plan, None
    if claim.deadline_slot is None or later is None:
        return plan, (None, None)
    price = rounding.parts(later.parts).total
    return plan, (claim.deadline_slot, price) if task.bid > price else None


def _later_deadline(market: Market, search: Search, task: Task) -> Hint:
    """Find the earliest later deadline at which the bid would win, and its price."""
    if not _hints(market):
        return None, None
    rounding = Rounding(market.rules.money_quantum)
    first = task.deadline_slot + 1
    while True:
        deadline = search.find_earliest_below(
            first=first,
            last=market.grid.horizon.last_slot,
            ceiling=rounding.most_below(task.bid),
        )
        better = None if deadline is None else search.find_plan(deadline)
        if deadline is None or better is None:
            return None, None
        price = rounding.parts(better.parts).total
        if task.bid > price:
            return deadline, price
        # Bid and price are equal but for the last digits of the search's sum.
        first = deadline + 1


def quote(market: Market, task: Task, slot: int, *, position: int) -> Quote:
    """Give the price of a task now and by deadline, reserving nothing."""
    rounding = Rounding(market.rules.money_quantum)
    search = market.search(task, slot)
    plan = search.find_plan(task.deadline_slot)
    curve: list[PricePoint] = []
    for deadline, price in search.trace_price_curve(first=slot, last=market.grid.horizon.last_slot):
        price += rounding.missing(price)
        # Rounding to whole units makes some treads equal to the one before.
        if not curve or price < curve[-1].price:
            # What makes a price fall is that the deadline's own slot is used.
            curve.append(PricePoint(deadline_slot=deadline, price=price, finish_slot=deadline))
    return Quote(
        schedule=None if plan is None else plan.schedule,
        parts=None if plan is None else rounding.parts(plan.parts),
        refusal=search.refusal() if plan is None else None,
        curve=tuple(curve),
        position=position,
    )
