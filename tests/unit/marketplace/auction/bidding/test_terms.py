"""Prices as typed, and settings as asked."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marketplace.auction.bidding.auto_settings import explain_choices
from marketplace.auction.bidding.terms import parse_price, resolve_terms
from marketplace.common.errors import UserError
from tests import market_builders as market
from workers.protocol.model_shape import BlockPart


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


def resolve(**changes):
    asked = {"adapter": {}, "training": {}, "rows": 2000, "longest_row_tokens": 100}
    return resolve_terms(
        **(asked | {"sequence_length_limit": 8192, "model": market.SHAPE} | changes)
    )


@pytest.mark.parametrize(
    ("rows", "longest", "batch"),
    [(2000, 100, 32), (2000, 1000, 16), (2000, 5000, 4), (200, 1000, 8), (20, 100, 4)],
)
def test_a_batch_left_to_us_is_no_more_than_one_pass_of_a_gpu(rows, longest, batch):
    assert resolve(rows=rows, longest_row_tokens=longest).training.batch_size == batch


def test_a_dropout_left_to_us_is_none_where_experts_are_named():
    experts = (BlockPart("mlp.experts.down_proj", 8, 16, (0, 1), 4, 2),)
    mixture = replace(market.SHAPE, experts=experts)
    named = resolve(rows=10, model=mixture, adapter={"target_modules": ["experts.down_proj"]})
    assert (named.adapter.dropout, resolve(rows=10, model=mixture).adapter.dropout) == (0.0, 0.05)
    assert "adapter.dropout" in named.resolved
    for wrong in (7, "experts.down_proj", [None]):
        with pytest.raises(UserError, match="target_modules"):
            resolve(rows=10, model=mixture, adapter={"target_modules": wrong})


def test_a_rank_left_to_us_fits_the_nodes_and_one_that_was_asked_for_stays():
    assert resolve(rank_limit=6).adapter.rank == 6
    assert resolve(rank_limit=6).adapter.alpha == 12.0
    assert resolve(rank_limit=64).adapter.rank == 16
    assert resolve(rank_limit=6, adapter={"rank": 32}).adapter.rank == 32


def test_every_choice_is_told_with_its_reason():
    terms = resolve(rank_limit=6, longest_row_tokens=9000, training={"epochs": 4})
    choices = explain_choices(
        terms.resolved,
        adapter=terms.adapter,
        training=terms.training,
        rows=terms.rows,
        sequence_length_limit=8192,
    )
    assert choices == {
        "adapter.rank": "6: the largest that the zone's nodes have room for.",
        "adapter.alpha": "12: twice the rank.",
        "adapter.dropout": "0: 1,000 rows and more do without.",
        "training.batch_size": (
            "4: near a thirtieth of 2,000 rows, 4 to 32, and no more than one pass of a GPU holds "
            "(16,384 tokens); memory does not depend on it."
        ),
        "training.learning_rate": (
            f"{terms.training.learning_rate:g}: scaled with the root of the batch, and of how "
            "narrow the model is."
        ),
        "training.sequence_length": (
            "8192: the longest that this zone trains; longer rows are cut there."
        ),
    }


@pytest.mark.parametrize("targets", ["all-linear", "auto", None])
def test_all_modules_have_three_names(targets):
    assert resolve(adapter={"target_modules": targets}).adapter.target_modules is None


def test_kinds_of_adapters_and_losses_are_settings_of_a_job():
    terms = resolve(
        adapter={"rslora": True, "dora": True},
        training={"neftune_alpha": 5.0, "preference_loss": "orpo"},
    )
    assert (terms.adapter.rslora, terms.adapter.dora) == (True, True)
    assert terms.training.preference_loss == "orpo"
    with pytest.raises(UserError, match="preference_loss must be dpo or orpo"):
        resolve(training={"preference_loss": "kto"})
