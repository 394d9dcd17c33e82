"""Stored quote functions and wishes: exact prices, delays and refusals."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from marketplace.common.errors import UserError
from marketplace.vendors.quoting import (
    DataSize,
    QuoteFunction,
    VendorOffer,
    VendorTime,
    make_offer,
)
from marketplace.vendors.wishes import parse_wish
from tests.builders import NOW
from workers.protocol.job_terms import PreparationWish
from workers.protocol.wire import to_json

QUOTES = QuoteFunction(
    minimum_micros=5_000,
    micros_per_1000_rows=3_000,
    micros_per_1000_tokens=7,
    base_s=20,
    s_per_1000_rows=4,
)


def offer(rows, tokens=0, *, rows_per_slot=1_000, quotes=QUOTES, **time):
    return make_offer(
        quotes,
        DataSize(rows=rows, tokens=tokens),
        vendor_id="v",
        time=replace(VendorTime(slot_s=10, rows_per_slot=rows_per_slot), **time),
        now=NOW,
    )


@pytest.mark.parametrize(
    ("rows", "tokens", "price_micros", "delay_slots", "load"),
    [
        # The minimum, and 20 seconds and a bit: three slots of ten.
        (100, 1_000, 5_000, 3, 34),
        # 3 cents of rows, 7 of tokens a thousand; 60 seconds.
        (10_000, 1_000_000, 37_000, 10, 1_000),
        # Rounded up to a whole micro-dollar.
        (2_001, 1, 6_004, 3, 667),
    ],
)
def test_an_offer_is_made_from_rows_and_tokens(rows, tokens, price_micros, delay_slots, load):
    assert offer(rows, tokens) == VendorOffer("v", price_micros, delay_slots, load)


def test_work_that_is_too_much_for_a_slot_is_spread_over_more_slots():
    assert offer(10_000, rows_per_slot=99) == VendorOffer("v", 30_000, 102, 99)
    assert offer(100, rows_per_slot=0) is None
    assert offer(10_000_000, rows_per_slot=1) is None


def test_a_function_holds_until_its_time():
    assert offer(1, quotes=replace(QUOTES, valid_until=NOW)) is None
    assert offer(1, quotes=replace(QUOTES, valid_until=NOW + timedelta(seconds=1))) is not None


GOLD = {str(n): '{"text": "One."}' for n in range(1, 6)}


def test_a_wish_is_read_with_its_defaults_and_goes_back_as_it_came():
    assert parse_wish({}) == PreparationWish()
    wish = PreparationWish(
        kinds=("automatic", "human"),
        drop_duplicates=False,
        mask_personal_data=True,
        phone_regions=("DE",),
        languages=("de", "en"),
        validation_share=0.25,
        gold=GOLD,
    )
    assert parse_wish(to_json(wish)) == wish


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"kinds": ["robots"]}, "kinds"),
        ({"kinds": "automatic"}, "kinds"),
        ({"languages": ["--out=/etc"]}, "languages"),
        ({"phone_regions": ["XX"]}, "phone_regions"),
        ({"phone_regions": "DE"}, "phone_regions"),
        ({"mask_personal_data": "yes"}, "mask_personal_data"),
        ({"validation_share": True}, "validation_share"),
        ({"validation_share": 0.51}, "validation_share"),
        ({"validation_share": float("nan")}, "validation_share"),
        ({"seed": 1}, "seed"),
        ({"gold": ["{}"]}, "gold"),
        ({"gold": GOLD | {"0": '{"text": "One."}'}}, "gold"),
        ({"gold": GOLD | {"1": "no row"}}, "gold"),
        ({"gold": GOLD | {"1": {"price": 3}}}, "gold"),
        ({"gold": dict(list(GOLD.items())[:4])}, "gold"),
        ({"gold": {str(n): {"text": "One."} for n in range(1, 52)}}, "gold"),
    ],
)
def test_a_wish_that_is_none_is_refused_with_its_field(asked, field):
    with pytest.raises(UserError) as refused:
        parse_wish(asked)
    assert (refused.value.code, refused.value.param) == (
        "invalid_preparation",
        f"preparation.{field}",
    )
