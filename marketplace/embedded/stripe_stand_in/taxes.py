"""Tax in totals, at a few made-up registrations."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

from marketplace.embedded.stripe_stand_in.faults import refuse_request
from marketplace.embedded.stripe_stand_in.store import Store, Thing, read_whole

#: Percent by country, where the seller of the stand-in is registered; it sits in Germany.
HOME = "DE"
PERCENT = {"DE": "19.0", "FR": "20.0", "US": "8.875"}


class Taxes(Store):
    """Calculations, and which of them count."""

    def calculate_tax(self, asked: Thing) -> Thing:
        [line] = asked.get("line_items", [{}])
        total = read_whole(line, "amount")
        buyer = asked.get("customer_details", {})
        address = buyer.get("address", {})
        country = address.get("country", "")
        if total < 1 or line.get("tax_behavior") != "inclusive":
            raise refuse_request("parameter_invalid", "Invalid line item", param="line_items")
        if not country or (country == "US" and not address.get("postal_code")):
            raise refuse_request(
                "customer_tax_location_invalid", "The buyer's location is not recognised."
            )
        percent = Decimal(PERCENT.get(country, "0"))
        is_reversed = bool(buyer.get("tax_ids")) and country != HOME and country in PERCENT
        tax = Decimal(0) if is_reversed else total * percent / (100 + percent)
        tax_cents = int(tax.quantize(Decimal(1), ROUND_HALF_EVEN))
        reason = "standard_rated" if percent else "not_collecting"
        made = self.add(
            "taxcalc",
            "tax.calculation",
            amount_total=total,
            currency="usd",
            customer=None,
            tax_amount_exclusive=0,
            tax_amount_inclusive=tax_cents,
            tax_breakdown=[
                {
                    "amount": tax_cents,
                    "inclusive": True,
                    "tax_rate_details": {"country": country, "percentage_decimal": str(percent)},
                    "taxability_reason": "reverse_charge" if is_reversed else reason,
                    "taxable_amount": total - tax_cents,
                }
            ],
            tax_date=self.now(),
        )
        # Stripe's has a date, and no moment at which it was made.
        made.pop("created")
        return made

    def record_tax(self, asked: Thing) -> Thing:
        calculation = self.get("tax.calculation", asked.get("calculation", ""))
        reference = asked.get("reference", "")
        if not reference or self.find("tax.transaction", reference=reference):
            raise refuse_request("parameter_invalid", "Used before", param="reference")
        return self.add(
            "tax",
            "tax.transaction",
            currency="usd",
            metadata=asked.get("metadata", {}),
            reference=reference,
            type="transaction",
            _calculation=calculation["id"],
        )
