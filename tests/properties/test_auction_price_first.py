"""Bids that are told their price first: no limit makes a price."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.auction import ChainEntry
from scheduler.auction.audit.transcripts import verify_transcript, write_transcript_lines
from scheduler.auction.log import events
from scheduler.auction.log.outcomes import ToldPrice
from scheduler.types import Decision
from tests.properties.auction_markets import Market, random_task
from tests.unit.scheduler.auction.builders import enter


class Operator:
    """Whoever runs a market: it enters whatever it likes, by all that the log says."""

    def __init__(self, seed: int) -> None:
        self.market = Market(seed, policy="lagrangian")
        self.log = self.market.run(30)
        self.market.slot += 1
        self._do(events.SlotAdvanced(self.market.slot))

    def _do(self, event: events.Event) -> ChainEntry:
        made = enter(self.market.engine, event)
        self.log += made
        return made[-1]

    def scheme(self) -> None:
        """Do some things at random, but not go on to another beat."""
        rng = self.market.rng
        rng.seed(f"{rng.random()} {self.market.engine.head_hash}")
        for _ in range(rng.randint(0, 6)):
            event = self.market.next_event()
            if not isinstance(event, events.SlotAdvanced):
                self._do(event)

    def sell(self, limit: float) -> tuple[float | None, Decision | None]:
        """Tell a job its price and decide its owner's answer, scheming in between.

        The owner answers by a limit that is nowhere in the log: it bids just above the told price,
        or nothing.
        """
        market = self.market
        task = replace(random_task(market.rng, "own", market.slot), bid=0.0, owner="o")
        market.tasks[task.id] = task
        beat = market.engine.beat
        assert beat is not None
        self.scheme()
        told = self._do(events.BidPriced(task, market.slot, beat)).outcome
        assert isinstance(told, ToldPrice)
        self.scheme()
        if told.price is None:
            return None, None
        self.before = list(self.log)
        # The market counts in whole micro-dollars; here prices are any numbers.
        bid = math.nextafter(told.price, math.inf) if limit > told.price else 0.0
        # It knows the answer by now, and may do something about it.
        market.rng.seed(f"{bid > 0} {market.engine.head_hash}")
        self.scheme()
        decided = self._do(events.BidArrived(replace(task, bid=bid), market.slot)).outcome
        assert isinstance(decided, Decision)
        return told.price, decided


@settings(max_examples=1000)
@given(seed=st.integers(0, 2**32), more=st.floats(1e-6, 1e6), less=st.floats(0.0, 1.0))
def test_no_operator_gets_a_payment_that_depends_on_a_limit_it_was_not_told(
    seed: int, more: float, less: float
) -> None:
    dear = Operator(seed)
    price, sold = dear.sell(1e300)
    if price is None or sold is None:
        return
    # Whatever it does once it knows the answer, it gets no more than it told.
    assert sold.payment <= price
    for limit in (price * (1 + more) + 1e-6, price * less):
        other = Operator(seed)
        told, decided = other.sell(limit)
        # Up to the answer it could not tell one limit from another.
        assert (told, other.before) == (price, dear.before)
        assert decided is not None
        took = limit > price
        assert (decided.admitted, decided.payment) == (
            (sold.admitted, sold.payment) if took else (False, 0.0)
        )


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_such_logs_are_verified_with_and_without_bids(seed: int) -> None:
    operator = Operator(seed)
    operator.sell(1e300)
    for shows in (None, lambda _: False):
        lines = write_transcript_lines(operator.log, rules=operator.market.rules, shows=shows)
        found = verify_transcript(lines)
        assert (found.problem, found.entries) == (None, len(operator.log))


def test_the_operators_sell_and_fail_to_sell_what_was_taken() -> None:
    sold = [Operator(seed).sell(1e300) for seed in range(120)]
    found = {decided.admitted for price, decided in sold if price and decided is not None}
    assert found == {True, False}
