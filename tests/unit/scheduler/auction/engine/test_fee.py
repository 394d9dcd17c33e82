"""The house's fee: a constant of a job's own work, added to the cost of its plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.auction import Engine, ZoneRules, rules_from_json, rules_to_json
from scheduler.auction.audit.verify import verify
from scheduler.auction.log import events
from scheduler.auction.log.chain import ChainEntry, chain_entry
from scheduler.auction.log.codec import outcome_to_json
from scheduler.auction.prices.counted_bids import take_charges_off
from scheduler.types import Decision, Refusal
from tests.unit.scheduler.auction.builders import decide, enter, node, price, task, zone

#: For the 8 samples of the builders' task 4.0.
FEE = 0.5


def test_the_price_is_that_of_the_plan_and_the_fee() -> None:
    engine = zone(node(ask=1.0), fee_per_unit=FEE)
    price(engine, 0.25)
    decision = decide(engine, task())
    assert decision.parts is not None
    assert (decision.parts.operational, decision.parts.compute) == (0.8, 2.0)
    assert decision.parts.fee == 4.0
    assert decision.payment == decision.parts.total == 6.8


@pytest.mark.parametrize("quantum", [0.0, 1.0])
def test_a_bid_wins_exactly_above_price_and_fee(quantum: float) -> None:
    rules = {"fee_per_unit": FEE, "money_quantum": quantum}
    engine = zone(node(ask=1.0), **rules)
    quoted = engine.quote(task(), slot=0).price or 0.0
    assert quoted == (4.8 if quantum == 0 else 5.0)
    refused = decide(engine, task(bid=quoted))
    assert refused.refusal is Refusal.PRICE
    assert refused.winning_price == quoted
    assert decide(engine, task(bid=quoted + 1e-6)).payment == quoted


def test_the_fee_changes_no_plan_and_is_in_every_price_of_the_curve() -> None:
    nodes = node("cheap", ask=1.0, available_from=3), node("dear", ask=5.0)
    without, with_fee = zone(*nodes), zone(*nodes, fee_per_unit=FEE)
    quotes = [engine.quote(task(), slot=0) for engine in (without, with_fee)]
    assert quotes[0].schedule == quotes[1].schedule
    assert [point.price + 4.0 for point in quotes[0].curve] == [
        point.price for point in quotes[1].curve
    ]
    later = decide(with_fee, task(bid=7.5, deadline_slot=1))
    assert (later.winning_deadline_slot, later.winning_deadline_price) == (3, pytest.approx(6.4))


def test_a_bundle_pays_the_fee_of_each_of_its_jobs() -> None:
    plain = zone(node(ask=1.0)).quote_bundle([task("a"), task("b")], slot=0)
    quoted = zone(node(ask=1.0), fee_per_unit=FEE).quote_bundle([task("a"), task("b")], slot=0)
    assert [parts.fee for parts in quoted.parts] == [4.0, 4.0]
    assert plain.price is not None
    assert quoted.price == plain.price + 8.0
    assert quoted.schedules == plain.schedules


def test_a_log_without_a_fee_says_nothing_of_one() -> None:
    """So that a zone without a fee has the hashes that it would have had."""
    assert "fee_per_unit" not in rules_to_json(ZoneRules())
    without = decide(zone(node(ask=1.0)), task())
    assert len(outcome_to_json(without)["parts"]) == 5
    rules = ZoneRules(fee_per_unit=FEE)
    assert rules_from_json(rules_to_json(rules)) == rules


@pytest.mark.parametrize("fee", [-1.0, float("nan"), float("inf")])
def test_a_fee_that_no_price_can_be_made_of_is_refused(fee: float) -> None:
    with pytest.raises(ValueError, match="fee_per_unit"):
        ZoneRules(fee_per_unit=fee)


def _write_log(rules: ZoneRules) -> list[ChainEntry]:
    engine = Engine(rules)
    entries = [engine.apply(events.NodeJoined(node(ask=1.0)))]
    return entries + enter(engine, events.BidArrived(task(), 0))


def test_a_verifier_refuses_a_price_that_is_not_price_and_fee() -> None:
    rules = ZoneRules(horizon_slots=6, fee_per_unit=FEE)
    *before, decided = _write_log(rules)
    assert verify([*before, decided], rules=rules).ok
    said = decided.outcome
    assert isinstance(said, Decision)
    assert said.parts is not None
    for fee in (0.0, 3.0, 5.0):
        parts = replace(said.parts, fee=fee)
        forged = chain_entry(
            position=decided.position,
            event=decided.event,
            outcome=replace(
                said,
                parts=parts,
                payment=parts.total,
                winning_price=parts.total,
                surplus=task().bid - parts.total,
            ),
            prev_hash=decided.prev_hash,
        )
        found = verify([*before, forged], rules=rules)
        assert not found.ok
        assert "differs from the log in payment" in (found.problem or "")


def test_a_fee_changes_with_the_rules_and_not_for_what_is_sold() -> None:
    engine = zone(node(ask=1.0))
    first = decide(engine, task("a"))
    engine.apply(events.RulesChanged(replace(engine.rules, fee_per_unit=FEE)))
    second = decide(engine, task("b"))
    assert (first.payment, second.payment) == (0.8, 4.8)


def test_prices_are_solved_for_what_bids_may_pay_beside_the_fee() -> None:
    bids = [task("a", bid=10.0), task("b", bid=3.0)]
    assert take_charges_off(bids, ZoneRules()) == bids
    assert [net.bid for net in take_charges_off(bids, ZoneRules(fee_per_unit=FEE))] == [6.0, -1.0]
