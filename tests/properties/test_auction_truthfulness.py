"""No bidder gains by bidding anything but what the job is worth to it.

Each check re-runs a zone from the state just before a bid, with another bid in
its place, and compares what the bidder gains. The same search for profit finds
plenty under the payment that the paper prints (eq. 14), so it would find any
here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from scheduler.auction import ZoneRules
from scheduler.auction.log import events
from scheduler.experiments.auction.max_form.engine import make_engine, pay_eq14
from scheduler.experiments.auction.max_form.policies import max_form_rules
from scheduler.types import Decision, NodeSpec, Task
from tests.properties.auction_markets import Market
from tests.properties.misreports import search_for_profit

RERUNS = 1_000
RERUNS_NIGHTLY = 10_000


#: Of the retired forms; the live one's are in ``test_lagrangian_policy``.
POLICIES = pytest.mark.parametrize("policy", ["residual", "printed"])


@pytest.mark.parametrize("fee", [0.3, 1.0])
def test_no_misreport_pays_where_the_house_takes_a_fee(fee: float) -> None:
    def open_market(seed: int) -> Market:
        rules = replace(Market(seed, policy="lagrangian").rules, fee_per_unit=fee)
        return Market(seed, policy="lagrangian", rules=rules)

    found = search_for_profit(open_market, reruns=RERUNS)
    assert found.reruns >= RERUNS
    assert min(found.won, found.lost) >= 5
    assert found.profitable == 0


@POLICIES
@pytest.mark.nightly
def test_no_misreport_of_the_price_pays_in_many_runs(policy: str) -> None:
    found = search_for_profit(
        partial(Market, policy=policy), reruns=RERUNS_NIGHTLY, names_one_price=False
    )
    assert found.reruns >= RERUNS_NIGHTLY
    assert min(found.won, found.lost) >= 10
    assert found.profitable == 0


@POLICIES
@pytest.mark.nightly
def test_the_same_search_finds_misreports_that_pay_under_the_printed_payment(policy: str) -> None:
    found = search_for_profit(
        partial(Market, policy=policy), reruns=RERUNS, by_eq14=True, names_one_price=False
    )
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
