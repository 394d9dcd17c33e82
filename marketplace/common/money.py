"""Money: whole micro-dollars inside, ``Decimal`` dollars at the edge, rounding only here."""

from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal, InvalidOperation

from marketplace.common.errors import UserError

MICROS_PER_USD = 1_000_000
#: The largest amount anyone may name: a billion dollars, far inside a 64-bit column.
MAX_MICROS = 1_000_000_000 * MICROS_PER_USD
#: Amounts under a dollar may have four decimals, so that what was bid, paid and kept add up.
SMALL_MICROS = MICROS_PER_USD
#: Amounts under a hundredth of a cent are shown to the micro-dollar.
TINY_MICROS = 100
_CENTS, _HUNDREDTHS = Decimal("0.01"), Decimal("0.0001")


def to_micros(amount: Decimal | str, *, param: str | None = None) -> int:
    """Micro-dollars of an amount a person or a program wrote in dollars.

    Raises
    ------
    UserError
        ``invalid_amount``: not a number, NaN or infinite, negative, finer than a
        micro-dollar, or above ``MAX_MICROS``.
    """
    if isinstance(amount, float):
        raise TypeError("a float cannot name an amount of money exactly; pass a Decimal or a str")
    try:
        # Decimal reads "1_000" and digits of other scripts too, which a person may not mean.
        if isinstance(amount, str) and ("_" in amount or not amount.isascii()):
            raise InvalidOperation
        dollars = Decimal(amount.strip() if isinstance(amount, str) else amount)
    except (InvalidOperation, ValueError):
        raise _build_error(
            f"{str(amount)[:40]!r} is not an amount; write dollars like 12.50.", param
        ) from None
    if not dollars.is_finite():
        raise _build_error("The amount must be a finite number of dollars, like 12.50.", param)
    if dollars.is_signed() and dollars != 0:
        raise _build_error("The amount cannot be negative.", param)
    # Compared before scaling: an exponent of a million digits must not become an integer.
    if dollars > MAX_MICROS // MICROS_PER_USD:
        raise _build_error("The amount is more than a billion dollars.", param)
    if dollars != 0 and dollars.as_tuple().exponent < -60:  # type: ignore[operator]
        raise _build_error("The amount has more than six decimals.", param)
    micros = dollars.scaleb(6)
    if micros != micros.to_integral_value():
        raise _build_error("The amount has more than six decimals.", param)
    return int(micros)


def from_micros(micros: int) -> Decimal:
    """Dollars, exact, with six decimals."""
    return Decimal(micros).scaleb(-6)


def format_usd(micros: int, *, up: bool = False) -> str:
    """As a sentence says an amount: ``$4.67``, ``$0.0101``.

    Cents; up to four decimals under a dollar, where cents would say too little; every digit under
    a hundredth of a cent. ``format_usd_exact`` is for what must add up. ``up`` rounds up: for
    an amount that somebody must reach, which rounded down would not do.
    """
    size = abs(micros)
    if 0 < size < TINY_MICROS:
        return format_usd_exact(micros)
    places = _CENTS if size >= SMALL_MICROS else _HUNDREDTHS
    shown = from_micros(micros).quantize(places, ROUND_CEILING if up else ROUND_HALF_EVEN)
    return format_usd_exact(int(shown.scaleb(6)))


def format_usd_exact(micros: int, *, decimals: int = 2) -> str:
    """``$3.10``, ``$0.00025``: to the micro-dollar, with ``decimals`` or as many as it needs."""
    whole, _, digits = f"{from_micros(abs(micros)):,f}".partition(".")
    return f"{'-' if micros < 0 else ''}${whole}.{digits.rstrip('0').ljust(decimals, '0')}"


def count_decimals(amounts: Iterable[int]) -> int:
    """How many decimals show every one of the amounts exactly; two at least."""
    return max((len(format_usd_exact(micros).partition(".")[2]) for micros in amounts), default=2)


def split_micros(total: int, weights: Sequence[int]) -> list[int]:
    """A total in whole parts, in proportion to weights; the parts add up to it.

    What rounding down leaves goes to the largest remainders, the earlier of equal ones first.
    Without any weight there is nothing to split.

    Raises
    ------
    ValueError
        There is an amount and no weight above zero.
    """
    whole = sum(weights)
    if whole == 0:
        if total:
            raise ValueError(f"no party has a share of {total} micro-dollars")
        return [0] * len(weights)
    parts = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for index in by_remainder[: total - sum(parts)]:
        parts[index] += 1
    return parts


def _build_error(message: str, param: str | None) -> UserError:
    return UserError("invalid_amount", message, param=param)
