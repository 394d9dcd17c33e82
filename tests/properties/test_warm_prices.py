"""A warm start in the auction: less work, never for more; and bidding what it is worth stays best.

The work and the royalty are the market's, made before any bid: to the engine they are a task and a
fee like any other.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler.auction import Engine
from scheduler.auction.log import events
from scheduler.types import Decision, LaborVendor, Task
from tests.properties.auction_markets import Market

SEEDS = 12
EVENTS = 40


def start_warm(task: Task, *, share: float, royalty: float) -> Task:
    """The task with a warm start, as the market's lane makes it."""
    fee = (LaborVendor("royalty", royalty, 0),) if royalty else ()
    return replace(task, compute_demand=task.compute_demand * share, vendors=fee)


def list_bids(market: Market) -> list[tuple[Engine, events.BidArrived]]:
    """Bids of a random market that could be served, each with the state before it."""
    found = []
    for _ in range(EVENTS):
        event = market.next_event()
        before = market.engine.replica()
        outcome = market.engine.transition(event)
        if isinstance(event, events.BidArrived) and isinstance(outcome, Decision):
            found.append((before, event))
    return found


def test_less_work_never_costs_more() -> None:
    compared = lowered = 0
    for seed in range(SEEDS):
        market = Market(seed, policy="lagrangian")
        for engine, event in list_bids(market):
            cold = replace(event.task, vendors=())
            price = engine.quote(cold, slot=event.slot).price
            if price is None:
                continue
            for share in (0.05, 0.3, 0.75, 1.0):
                warm = start_warm(cold, share=share, royalty=0.0)
                warm_price = engine.quote(warm, slot=event.slot).price
                assert warm_price is not None
                assert warm_price <= price + 1e-6
                compared, lowered = compared + 1, lowered + (warm_price < price - 1e-6)
    assert compared > 200
    assert lowered > 40


def measure_gain(before: Engine, event: events.BidArrived, bid: float) -> float:
    """What a bidder to whom the job is worth ``event.task.bid`` gains by a bid."""
    task = replace(event.task, bid=bid)
    outcome = before.replica().transition(replace(event, task=task))
    assert isinstance(outcome, Decision)
    return event.task.bid - outcome.payment if outcome.admitted else 0.0


def test_with_a_warm_start_and_its_royalty_no_misreport_pays() -> None:
    reruns = won = lost = 0
    for seed in range(SEEDS):
        market = Market(seed, policy="lagrangian")
        for before, event in list_bids(market):
            warm = start_warm(event.task, share=0.4, royalty=1.5)
            asked = replace(event, task=warm)
            honest = measure_gain(before, asked, warm.bid)
            assert honest >= 0.0
            won, lost = won + (honest > 0), lost + (honest == 0)
            for lie in (0.0, warm.bid * 0.5, warm.bid * 2, 1e9):
                assert measure_gain(before, asked, lie) <= honest + 1e-9
                reruns += 1
    assert reruns > 200
    assert min(won, lost) >= 10
