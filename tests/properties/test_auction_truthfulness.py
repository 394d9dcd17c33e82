"""No bidder gains by bidding anything but what the job is worth to it.

Each check re-runs a zone from the state just before a bid, with another bid in
its place, and compares what the bidder gains. The same search for profit finds
plenty under the payment that the paper prints (eq. 14), so it would find any
here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from scheduler.auction import ZoneRules
from scheduler.auction.log import events
from scheduler.experiments.auction.max_form.engine import make_engine, pay_eq14
from scheduler.experiments.auction.max_form.policies import max_form_rules
from scheduler.types import Decision, NodeSpec, Task
from tests.properties.auction_markets import Market

RERUNS = 1_000
RERUNS_NIGHTLY = 10_000


@dataclass(frozen=True)
class Found:
    """What a search for profitable misreports found."""

    reruns: int
    profitable: int
    #: Bids whose truth won, and whose truth lost, among those searched.
    won: int
    lost: int


def _gain(outcome: object, worth: float, *, by_eq14: bool) -> float:
    assert isinstance(outcome, Decision)
    outcome = pay_eq14(outcome) if by_eq14 else outcome
    return worth - outcome.payment if outcome.admitted else 0.0


def search_for_profit(
    *, policy: str, reruns: int, by_eq14: bool = False, fee_per_unit: float = 0.0
) -> Found:
    """Misreport bids in random markets until enough re-runs are made."""
    made = profitable = won = lost = seed = 0
    while made < reruns:
        seed += 1
        market = Market(seed, policy=policy)
        if fee_per_unit:
            rules = replace(market.rules, fee_per_unit=fee_per_unit)
            market = Market(seed, policy=policy, rules=rules)
        for _ in range(40):
            event = market.next_event()
            before = market.engine.replica()
            outcome = market.engine.transition(event)
            if not isinstance(event, events.BidArrived) or not isinstance(outcome, Decision):
                continue
            if outcome.winning_price is None and not outcome.admitted:
                continue
            worth = event.task.bid
            honest = _gain(outcome, worth, by_eq14=by_eq14)
            won, lost = won + outcome.admitted, lost + (not outcome.admitted)
            price = outcome.winning_price or 0.0
            for lie in (
                0.0,
                worth * market.rng.uniform(0.0, 1.0),
                worth * market.rng.uniform(1.0, 3.0),
                price * (1 - 1e-9),
                price + 1e-6,
                price + 10.0,
                1e9,
            ):
                task = replace(event.task, bid=lie)
                other = before.replica().transition(replace(event, task=task))
                made += 1
                profitable += _gain(other, worth, by_eq14=by_eq14) > honest + 1e-9
    return Found(reruns=made, profitable=profitable, won=won, lost=lost)


POLICIES = pytest.mark.parametrize("policy", ["residual", "printed"])


@POLICIES
def test_no_misreport_of_the_price_pays(policy: str) -> None:
    found = search_for_profit(policy=policy, reruns=RERUNS)
    assert found.reruns >= RERUNS
    assert min(found.won, found.lost) >= 10
    assert found.profitable == 0


@pytest.mark.parametrize("fee", [0.3, 1.0])
def test_no_misreport_pays_where_the_house_takes_a_fee(fee: float) -> None:
    found = search_for_profit(policy="lagrangian", reruns=RERUNS, fee_per_unit=fee)
    assert found.reruns >= RERUNS
    assert min(found.won, found.lost) >= 10
    assert found.profitable == 0


@POLICIES
@pytest.mark.nightly
def test_no_misreport_of_the_price_pays_in_many_more_runs(policy: str) -> None:
    found = search_for_profit(policy=policy, reruns=RERUNS_NIGHTLY)
    assert found.reruns >= RERUNS_NIGHTLY
    assert found.profitable == 0


@POLICIES
def test_the_same_search_finds_misreports_that_pay_under_the_printed_payment(policy: str) -> None:
    found = search_for_profit(policy=policy, reruns=RERUNS, by_eq14=True)
    assert found.profitable > 10


def test_the_printed_payment_fails_on_one_node_and_one_slot() -> None:
    """Operational cost 4, no duals, worth 3: eq. 14 lets a lie of 5 gain 3."""

    def decide(bid: float) -> Decision:
        form = max_form_rules(alpha=1.0, beta=1.0)
        engine = make_engine(ZoneRules(policy="printed", horizon_slots=1, settings=form))
        engine.apply(
            events.NodeJoined(
                NodeSpec(id="n", gpu_type="g", compute_capacity=1.0, memory_capacity=1.0, ask=4.0)
            )
        )
        task = Task(
            id="t",
            arrival_slot=0,
            deadline_slot=0,
            compute_demand=1.0,
            memory_demand=0.5,
            bid=bid,
            rates={"g": 1.0},
        )
        outcome = engine.transition(events.BidArrived(task, 0))
        assert isinstance(outcome, Decision)
        return outcome

    assert not decide(3.0).admitted
    lie = decide(5.0)
    assert lie.admitted
    assert pay_eq14(lie).payment == 0.0
    assert lie.payment == 4.0
