"""Money: whole micro-dollars inside, ``Decimal`` dollars at the edge, rounding only here."""

from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

from marketplace.common.errors import UserError

MICROS_PER_USD = 1_000_000
#: The largest amount anyone may name: a billion dollars, far inside a 64-bit column.
MAX_MICROS = 1_000_000_000 * MICROS_PER_USD


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
        dollars = Decimal(amount.strip() if isinstance(amount, str) else amount)
    except (InvalidOperation, ValueError):
        raise _invalid(
            f"{str(amount)[:40]!r} is not an amount; write dollars like 12.50.", param
        ) from None
    if not dollars.is_finite():
        raise _invalid("The amount must be a finite number of dollars, like 12.50.", param)
    if dollars.is_signed() and dollars != 0:
        raise _invalid("The amount cannot be negative.", param)
    # Compared before scaling: an exponent of a million digits must not become an integer.
    if dollars > MAX_MICROS // MICROS_PER_USD:
        raise _invalid("The amount is more than a billion dollars.", param)
    if dollars != 0 and dollars.as_tuple().exponent < -60:  # type: ignore[operator]
        raise _invalid("The amount has more than six decimals.", param)
    micros = dollars.scaleb(6)
    if micros != micros.to_integral_value():
        raise _invalid("The amount has more than six decimals.", param)
    return int(micros)


def from_micros(micros: int) -> Decimal:
    """Dollars, exact, with six decimals."""
    return Decimal(micros).scaleb(-6)


def format_usd(micros: int) -> str:
    """``$3.10``; sub-cent amounts keep the digits they need, ``$0.000250``."""
    sign = "-" if micros < 0 else ""
    dollars = from_micros(abs(micros))
    cents = dollars.quantize(Decimal("0.01"), rounding=ROUND_HALF_EVEN)
    shown = cents if cents == dollars else dollars
    return f"{sign}${shown:,f}"


def _invalid(message: str, param: str | None) -> UserError:
    return UserError("invalid_amount", message, param=param)
