"""The tax in a price, by the operator's table of rates or by the gateway's (Stripe Tax).

Prices include tax: a bid says what a job is worth to its owner, all in
(docs/adr/0016-prices-include-tax.md). The table says what part of a price is tax in each country;
where it says nothing there is none. The gateway is asked by a call of the outbox, whose answer an
invoice is issued with.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Decimal

from django.conf import settings

from marketplace.common.errors import UserError
from marketplace.payments.models import (
    MICROS_PER_CENT,
    BillingDetails,
    CallKind,
    CallStatus,
    GatewayCall,
    Invoice,
)
from marketplace.payments.outbox import WantedCall, add_calls
from marketplace.payments.stripe_tax import TaxCalculation, calculate_tax, record_tax

#: What an invoice says where the buyer owes the tax itself.
REVERSE_CHARGE = "Reverse charge: the buyer owes the tax."
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


@dataclass(frozen=True, slots=True)
class InvoiceTax:
    """The tax in the total of one invoice."""

    rate_milli_percent: int
    tax_micros: int
    note: str = ""
    #: The gateway's calculation; empty where the table was used.
    calculation_id: str = ""


def find_tax(*, buyer: BillingDetails, total_micros: int, now: datetime) -> InvoiceTax | None:
    """The tax in a total; ``None`` while the gateway is being asked. Call in a transaction.

    More back than paid is taxed as the buyer's last invoice was: it takes back what that one took.
    """
    if not settings.STRIPE_TAX:
        tax = choose_tax(country=buyer.country, tax_id=buyer.tax_id)
        return InvoiceTax(tax.rate_milli_percent, tax.compute(total_micros), tax.note)
    # Half a cent is a cent; the gateway counts no less.
    total_cents = (total_micros + MICROS_PER_CENT // 2) // MICROS_PER_CENT
    if total_cents <= 0:
        last = (
            Invoice.objects.filter(organisation=buyer.organisation_id, total_micros__gt=0)
            .order_by("-issued_at", "-number")
            .first()
        )
        tax = Tax(0) if last is None else Tax(last.tax_rate_milli_percent, last.tax_note)
        return InvoiceTax(tax.rate_milli_percent, tax.compute(total_micros), tax.note)
    return _ask_gateway(buyer, total_cents, now=now)


def _ask_gateway(buyer: BillingDetails, total_cents: int, *, now: datetime) -> InvoiceTax | None:
    """Asked once for the next invoice: with a corrected address it is another question."""
    terms = {
        "organisation": buyer.organisation_id,
        "earlier": Invoice.objects.filter(organisation=buyer.organisation_id).count(),
        "total_cents": total_cents,
        "country": buyer.country or settings.SELLER_COUNTRY,
        "postal_code": buyer.postal_code,
        "tax_id": buyer.tax_id,
    }
    digest = hashlib.sha256(json.dumps(terms, sort_keys=True).encode()).hexdigest()
    subject = digest[:40]
    call = GatewayCall.objects.filter(kind=CallKind.TAX, subject=subject).first()
    if call is None:
        add_calls([WantedCall(CallKind.TAX, subject, terms)], now=now)
    if call is None or call.status != CallStatus.DONE:
        return None
    answer = call.arguments["answer"]
    return InvoiceTax(
        rate_milli_percent=answer["rate_milli_percent"],
        tax_micros=answer["tax_cents"] * MICROS_PER_CENT,
        note=REVERSE_CHARGE if answer["is_reverse_charge"] else "",
        calculation_id=answer["gateway_id"],
    )


# What the outbox does about tax.


def make_tax(call: GatewayCall) -> TaxCalculation:
    terms = call.arguments
    return calculate_tax(
        total_cents=terms["total_cents"],
        country=terms["country"],
        postal_code=terms["postal_code"],
        tax_id=terms["tax_id"],
        reference=call.subject,
        key=call.key,
    )


def apply_tax(call: GatewayCall, *, answer: TaxCalculation, now: datetime) -> None:
    """Keep the answer for the invoice; the one that applies a call stores it."""
    call.arguments["answer"] = asdict(answer)


def make_tax_record(call: GatewayCall) -> bool:
    record_tax(
        calculation_id=call.arguments["calculation"],
        reference=call.arguments["number"],
        key=call.key,
    )
    return True


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
        return Tax(0, REVERSE_CHARGE)
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
