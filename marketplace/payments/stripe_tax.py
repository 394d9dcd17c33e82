"""Stripe Tax: what part of a total is tax, and which invoices count in its reports."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from marketplace.payments.stripe_client import call_gateway, get_client

_EU = (
    *("AT", "BE", "BG", "CY", "CZ", "DE", "DK", "EE", "ES", "FI", "FR", "GR", "HR", "HU"),
    *("IE", "IT", "LT", "LU", "LV", "MT", "NL", "PL", "PT", "RO", "SE", "SI", "SK"),
)
#: What the gateway calls tax ids, by the buyer's country; of others it gets none.
_TAX_ID_KINDS = {
    **dict.fromkeys(_EU, "eu_vat"),
    "CH": "ch_vat",
    "GB": "gb_vat",
    "NO": "no_vat",
    "US": "us_ein",
}


@dataclass(frozen=True, slots=True)
class TaxCalculation:
    """What part of a total is tax."""

    gateway_id: str
    tax_cents: int
    #: The rates that apply, added up.
    rate_milli_percent: int
    is_reverse_charge: bool


def calculate_tax(
    *, total_cents: int, country: str, postal_code: str, tax_id: str, reference: str, key: str
) -> TaxCalculation:
    """The tax in a total that includes it, by the gateway's own knowledge of rates."""
    address = {"country": country} | ({"postal_code": postal_code} if postal_code else {})
    buyer: dict[str, Any] = {"address": address, "address_source": "billing"}
    if tax_id and country in _TAX_ID_KINDS:
        buyer["tax_ids"] = [{"type": _TAX_ID_KINDS[country], "value": tax_id}]
    line = {"amount": total_cents, "reference": reference, "tax_behavior": "inclusive"}
    asked: Any = {"currency": "usd", "customer_details": buyer, "line_items": [line]}
    found = call_gateway(
        lambda: get_client().v1.tax.calculations.create(asked, {"idempotency_key": key})
    )
    percents = [
        Decimal(part.tax_rate_details.percentage_decimal or 0)
        for part in found.tax_breakdown
        if part.amount
    ]
    reasons = {part.taxability_reason for part in found.tax_breakdown}
    return TaxCalculation(
        gateway_id=found.id or "",
        tax_cents=found.tax_amount_inclusive,
        rate_milli_percent=int((sum(percents, Decimal(0)) * 1000).to_integral_value()),
        is_reverse_charge="reverse_charge" in reasons,
    )


def record_tax(*, calculation_id: str, reference: str, key: str) -> None:
    """Let a calculation count in the gateway's tax reports, under an invoice's number."""
    call_gateway(
        lambda: get_client().v1.tax.transactions.create_from_calculation(
            {"calculation": calculation_id, "reference": reference}, {"idempotency_key": key}
        )
    )
