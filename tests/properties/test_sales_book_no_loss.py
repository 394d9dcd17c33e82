"""No sale costs the house money, at whatever tax, gateway fee, price and house fee."""

from __future__ import annotations

from fractions import Fraction

from django.test import override_settings
from hypothesis import example, given
from hypothesis import strategies as st

from marketplace.auction.pay_rule import compute_asks
from marketplace.payments.price_shares import find_card_share, find_tax_share
from marketplace.payments.taxes import Tax
from scheduler.auction import ZoneRules
from scheduler.auction.engine.payment import PaymentRule, make_payment_rule
from scheduler.types import PriceParts
from tests.unit.scheduler.auction.builders import task

#: What sums of floats may differ by, in micro-dollars.
ROUNDING = Fraction(1, 1_000_000)
#: From a hundredth of a cent to ten thousand dollars, in micro-dollars.
COSTS = st.floats(0.0, 1e10, allow_nan=False).map(lambda cost: round(cost, 3))
#: Thousandths of a percent.
TAX_RATES = st.integers(0, 30_000)
CARD_PERCENTS = st.sampled_from([0.0, 1.4, 2.9, 4.5])
CARD_CENTS = st.sampled_from([0, 25, 30, 60])
LEAST_CENTS = st.sampled_from([500, 1_000, 2_000])
FEES = st.sampled_from([0.0, 0.01, 0.5, 7.25])


def make_rule(*, rate: int, percent: float, cents: int, least: int, fee: float) -> PaymentRule:
    """Give the rule of a zone whose operator has these settings."""
    with override_settings(
        TAX_RATES={"DE": rate},
        CARD_FEE_SHARE=percent / 100,
        CARD_FEE_CENTS=cents,
        CARD_LEAST_CENTS=least,
    ):
        rules = ZoneRules(
            money_quantum=1.0,
            fee_per_unit=fee,
            card_share=find_card_share(),
            tax_share=find_tax_share(),
        )
    return make_payment_rule(rules, task())


@given(COSTS, TAX_RATES, CARD_PERCENTS, CARD_CENTS, LEAST_CENTS, FEES, TAX_RATES)
@example(8.1, 19_000, 0.0, 0, 500, 0.0, 19_000)
@example(100.0, 8_100, 2.9, 30, 500, 0.0, 8_100)
def test_what_is_left_of_a_price_pays_its_nodes_and_the_fee(
    cost: float, highest: int, percent: float, cents: int, least: int, fee: float, own: int
) -> None:
    """After the buyer's tax, no higher than the highest, and the fee of the smallest payment."""
    rule = make_rule(rate=highest, percent=percent, cents=cents, least=least, fee=fee)
    parts = rule.parts(PriceParts(operational=cost))
    price = int(parts.total)
    assert price == parts.total == rule.price(cost)
    tax = Tax(min(own, highest)).compute(price)
    gateway = (Fraction(str(percent)) / 100 + Fraction(cents, least)) * price
    assert tax <= parts.tax
    assert gateway <= Fraction(parts.card) + ROUNDING
    asks = compute_asks(operational=cost, payment_micros=price)
    assert price - tax - gateway >= asks + int(rule.fee) - ROUNDING


@given(st.integers(1, 10**9), TAX_RATES, CARD_PERCENTS, COSTS)
def test_a_bid_wins_exactly_where_the_cost_is_below_what_its_rule_says(
    bid: int, rate: int, percent: float, cost: float
) -> None:
    rule = PaymentRule(
        quantum=1.0, fee=2.5, card_share=percent / 100, tax_share=rate / (100_000 + rate)
    )
    wins = bid > rule.price(cost)
    assert wins == (cost < rule.most_below(bid))


@given(COSTS, COSTS, TAX_RATES, CARD_PERCENTS)
def test_a_dearer_plan_has_no_lower_price(
    one: float, other: float, rate: int, percent: float
) -> None:
    rule = PaymentRule(
        quantum=1.0, fee=2.5, card_share=percent / 100, tax_share=rate / (100_000 + rate)
    )
    low, high = sorted((one, other))
    assert rule.price(low) <= rule.price(high)
    assert rule.least(low) <= rule.price(low) + 1e-6
