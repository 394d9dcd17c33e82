"""The tax in a price, by the operator's table of rates.

Prices include tax: a bid says what a job is worth to its owner, all in. The table says what part
of a price is tax in each country; where it says nothing there is none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal

from django.conf import settings

from marketplace.common.errors import UserError

_TAX_ID = re.compile(r"[A-Z]{2}[0-9A-Z+*.-]{2,28}")


@dataclass(frozen=True, slots=True)
class Tax:
    """The rate in thousandths of a percent, and what the invoice says about it."""

    rate_milli_percent: int
    note: str = ""

    def compute(self, total_micros: int) -> int:
        """The tax in a total, to the micro-dollar; of a total below zero it is below zero."""
        part = Decimal(total_micros) * self.rate_milli_percent / (100_000 + self.rate_milli_percent)
        return int(part.quantize(Decimal(1), ROUND_HALF_EVEN))


def choose_tax(*, country: str, tax_id: str) -> Tax:
    """The tax on what a buyer of a country pays.

    A business of another country, which gave its tax id, owes the tax itself where that country
    has one in the table. A buyer who named no country is taxed as in the seller's.
    """
    rates: dict[str, int] = settings.TAX_RATES
    country = country or settings.SELLER_COUNTRY
    if country not in rates:
        return Tax(0)
    if tax_id and country != settings.SELLER_COUNTRY:
        return Tax(0, "Reverse charge: the buyer owes the tax.")
    return Tax(rates[country])


def read_tax_id(text: str, *, country: str) -> str:
    """A tax id without its spaces, in capitals; empty where none is given.

    Raises
    ------
    UserError
        ``invalid_tax_id``.
    """
    wanted = "".join(text.split()).upper()
    if not wanted:
        return ""
    if not _TAX_ID.fullmatch(wanted):
        raise UserError(
            "invalid_tax_id",
            "Write the tax id with its country in front, like DE123456789.",
            param="tax_id",
        )
    # Greece writes EL before its numbers, and GR everywhere else.
    if country and wanted[:2] != {"GR": "EL"}.get(country, country):
        raise UserError(
            "invalid_tax_id", "The tax id is of another country than the address.", param="tax_id"
        )
    return wanted
