from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marketplace.common.errors import UserError
from marketplace.common.money import (
    MAX_MICROS,
    count_decimals,
    format_usd,
    format_usd_exact,
    from_micros,
    to_micros,
)


@pytest.mark.parametrize(
    ("amount", "micros"),
    [
        ("0", 0),
        ("-0", 0),
        ("12.50", 12_500_000),
        (" 3.1 ", 3_100_000),
        ("0.000001", 1),
        ("1e3", 1_000_000_000),
        ("1E-6", 1),
        ("1.0000000000", 1_000_000),
        ("1000000000", MAX_MICROS),
        (Decimal("7.25"), 7_250_000),
    ],
)
def test_dollars_become_exact_micro_dollars(amount: Decimal | str, micros: int) -> None:
    assert to_micros(amount) == micros


@pytest.mark.parametrize(
    "amount",
    [
        "",
        "abc",
        "1,000",
        "$5",
        "NaN",
        "sNaN",
        "Infinity",
        "-Infinity",
        "-0.01",
        "0.0000001",
        "1e-7",
        "1e-999999",
        "1e999999",
        "1000000000.000001",
        "1_0_0x",
        "\N{FULLWIDTH DIGIT ONE}x",
        "9" * 5000,
        Decimal("NaN"),
        Decimal("-1"),
    ],
)
def test_what_is_no_amount_is_refused_by_name(amount: Decimal | str) -> None:
    with pytest.raises(UserError) as refused:
        to_micros(amount, param="price")
    assert refused.value.code == "invalid_amount"
    assert refused.value.param == "price"
    assert refused.value.status == 400
    assert len(refused.value.message) < 120


def test_a_float_never_names_money() -> None:
    with pytest.raises(TypeError):
        to_micros(0.1)


@given(st.integers(0, MAX_MICROS))
def test_micro_dollars_survive_the_way_out_and_back(micros: int) -> None:
    assert to_micros(from_micros(micros)) == micros
    assert to_micros(str(from_micros(micros))) == micros


@pytest.mark.parametrize(
    ("micros", "shown"),
    [
        (0, "$0.00"),
        (3_100_000, "$3.10"),
        (4_668_213, "$4.67"),
        (50_000, "$0.05"),
        (53_218, "$0.0532"),
        (999_960, "$1.00"),
        (10_125, "$0.0101"),
        (39_600, "$0.0396"),
        (250, "$0.0002"),
        (99, "$0.000099"),
        (1_234_567_890_000, "$1,234,567.89"),
        (-4_900_000, "-$4.90"),
    ],
)
def test_a_sentence_says_cents_and_more_only_where_cents_say_too_little(
    micros: int, shown: str
) -> None:
    assert format_usd(micros) == shown


@given(st.integers(0, MAX_MICROS))
def test_an_amount_to_reach_is_never_rounded_down(micros: int) -> None:
    said = to_micros(format_usd(micros, up=True).removeprefix("$").replace(",", ""))
    assert 0 <= said - micros < 10_000


@pytest.mark.parametrize(
    ("micros", "shown"),
    [
        (0, "$0.00"),
        (3_100_000, "$3.10"),
        (250, "$0.00025"),
        (22_245_000, "$22.245"),
        (1_234_567_890_000, "$1,234,567.89"),
        (-4_900_000, "-$4.90"),
    ],
)
def test_amounts_are_shown_without_losing_a_micro_dollar(micros: int, shown: str) -> None:
    assert format_usd_exact(micros) == shown


@given(st.integers(0, MAX_MICROS))
def test_exact_amounts_read_back_as_they_were(micros: int) -> None:
    assert to_micros(format_usd_exact(micros).removeprefix("$").replace(",", "")) == micros


def test_a_column_has_the_decimals_of_its_finest_amount() -> None:
    assert count_decimals([]) == 2
    assert count_decimals([4_670_000, 0]) == 2
    assert count_decimals([4_670_000, 14_625]) == 6
    assert format_usd_exact(4_670_000, decimals=6) == "$4.670000"


@pytest.mark.parametrize("written", ["1_000", "0.000_001", "\u0661\u0662", "\uff11.5"])
def test_amounts_are_written_with_ascii_digits_alone(written):
    with pytest.raises(UserError, match="is not an amount") as refused:
        to_micros(written)
    assert refused.value.code == "invalid_amount"
