"""Of every price, what pays for cards and for tax, so that no sale costs the house money.

Both follow from the operator's settings and are rules of every zone: they stand in its log
(docs/adr/0021-cards-and-tax-in-prices.md).
"""

from __future__ import annotations

from django.conf import settings

from marketplace.payments.stripe_gateway import CARD_MIN_CENTS


def find_card_share() -> float:
    """The largest share that the gateway keeps of a payment: of the least that a card pays."""
    return settings.CARD_FEE_SHARE + settings.CARD_FEE_CENTS / settings.CARD_LEAST_CENTS


def find_least_cents() -> int:
    """The least that a card pays for a bid: with less, the gateway's fee would be a larger share.

    A lower price is collected over the wallet, which gets the rest of the payment.
    """
    return settings.CARD_LEAST_CENTS if find_card_share() else CARD_MIN_CENTS


def find_tax_share() -> float:
    """The share of a price that is tax at the highest rate of the table."""
    rate = max(settings.TAX_RATES.values(), default=0)
    return rate / (100_000 + rate)
