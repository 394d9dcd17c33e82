"""A search for bids that gain by stating anything but what the job is worth to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from scheduler.auction.log import events
from scheduler.experiments.auction.max_form.engine import pay_eq14
from scheduler.types import Decision
from tests.properties.auction_markets import Market


@dataclass(frozen=True)
class Found:
    """What a search for profitable misreports found."""

    reruns: int
    profitable: int
    #: Truthful bids that won, that lost, and that met a price of cells above zero.
    won: int
    lost: int
    priced: int


def _gain(outcome: Decision, worth: float, *, by_eq14: bool) -> float:
    outcome = pay_eq14(outcome) if by_eq14 else outcome
    return worth - outcome.payment if outcome.admitted else 0.0


def search_for_profit(
    open_market: Callable[[int], Market],
    *,
    reruns: int,
    by_eq14: bool = False,
    names_one_price: bool = True,
) -> Found:
    """Misreport bids in random markets, one a seed, until enough re-runs are made.

    ``names_one_price`` says that each answer must name the same price, also to who loses.
    """
    made = profitable = won = lost = priced = seed = 0
    while made < reruns:
        seed += 1
        market = open_market(seed)
        for _ in range(40):
            event = market.next_event()
            before = market.engine.replica()
            outcome = market.engine.transition(event)
            if not isinstance(event, events.BidArrived) or not isinstance(outcome, Decision):
                continue
            if outcome.winning_price is None or outcome.parts is None:
                continue
            worth, price = event.task.bid, outcome.winning_price
            honest = _gain(outcome, worth, by_eq14=by_eq14)
            won, lost = won + outcome.admitted, lost + (not outcome.admitted)
            priced += outcome.parts.compute + outcome.parts.memory > 0
            for lie in (
                0.0,
                worth * market.rng.uniform(0.0, 1.0),
                worth * market.rng.uniform(1.0, 3.0),
                price * (1 - 1e-9),
                price + 1e-6,
                price + 10.0,
                1e9,
            ):
                stated = replace(event, task=replace(event.task, bid=lie))
                other = before.replica().transition(stated)
                assert isinstance(other, Decision)
                if names_one_price:
                    assert other.winning_price == price
                    assert not other.admitted or other.payment == price
                made += 1
                profitable += _gain(other, worth, by_eq14=by_eq14) > honest + 1e-9
    return Found(made, profitable, won, lost, priced)
