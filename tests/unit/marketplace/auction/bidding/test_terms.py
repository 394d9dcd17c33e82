"""Prices as typed, and settings as asked."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marketplace.auction.bidding.terms import parse_price, resolve_terms
from marketplace.common.errors import UserError
from tests import market_builders as market


@pytest.mark.parametrize(
    ("text", "micros"),
    [("4.50", 4_500_000), ("0.000001", 1), (" 3 ", 3_000_000), (Decimal("1000000"), 10**12)],
)
def test_prices_are_read_exactly(text, micros):
    assert parse_price(text) == micros


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-1",
        "NaN",
        "Infinity",
        "-Infinity",
        "1e400",
        "0.0000001",
        "1000000.01",
        "four",
        "",
        "1,50",
        "9" * 400,
    ],
)
def test_what_is_no_price_is_refused_in_words(text):
    with pytest.raises(UserError) as caught:
        parse_price(text)
    assert caught.value.code == "invalid_price"
    assert caught.value.param == "price"
    assert len(caught.value.message) < 200


@given(
    rows=st.integers(1, 10**7),
    longest=st.integers(0, 10**6),
    limit=st.integers(16, 4096),
)
def test_settings_left_to_us_are_always_valid(rows, longest, limit):
    terms = resolve_terms(
        adapter={},
        training={},
        rows=rows,
        longest_row_tokens=longest,
        sequence_length_limit=limit,
        model=market.SHAPE,
    )
    assert 2 <= terms.training.epochs <= 10
    assert terms.training.batch_size in (4, 8, 16, 32)
    assert terms.training.sequence_length <= limit
    assert 0 < terms.training.learning_rate <= 1
    assert len(terms.resolved) == 7


@pytest.mark.parametrize(
    ("width", "batch", "rate"),
    [(4096, 8, 2e-4), (4096, 32, 4e-4), (160, 8, 1.01e-3), (768, 8, 4.62e-4)],
)
def test_a_learning_rate_left_to_us_grows_for_small_models_and_large_batches(width, batch, rate):
    terms = resolve_terms(
        adapter={},
        training={"batch_size": batch},
        rows=1000,
        longest_row_tokens=100,
        sequence_length_limit=512,
        model=replace(market.SHAPE, hidden_size=width),
    )
    assert terms.training.learning_rate == rate
    assert "training.learning_rate" in terms.resolved
