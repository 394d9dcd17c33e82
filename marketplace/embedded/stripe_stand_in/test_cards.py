"""The named test cards; no number can be typed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TestCard:
    """A card that always behaves in one way."""

    #: As Stripe's tests name it.
    name: str
    label: str
    last4: str
    #: Code, decline code and words of the refusal; empty: it pays.
    code: str = ""
    decline_code: str = ""
    message: str = ""
    #: Its bank asks the owner to confirm.
    asks: bool = False
    #: What it paid is disputed at once.
    disputes: bool = False


TEST_CARDS = {
    card.name: card
    for card in (
        TestCard("pm_card_visa", "Works", "4242"),
        TestCard("pm_card_bypassPending", "Works, and can leave at once", "0077"),
        TestCard(
            "pm_card_chargeDeclined",
            "Is declined",
            "0002",
            "card_declined",
            "generic_decline",
            "Your card was declined.",
        ),
        TestCard(
            "pm_card_chargeDeclinedInsufficientFunds",
            "Has no funds",
            "9995",
            "card_declined",
            "insufficient_funds",
            "Your card has insufficient funds.",
        ),
        TestCard(
            "pm_card_chargeDeclinedExpiredCard",
            "Has expired",
            "0069",
            "expired_card",
            "",
            "Your card has expired.",
        ),
        TestCard("pm_card_authenticationRequired", "Asks for confirmation", "3184", asks=True),
        TestCard("pm_card_createDispute", "Pays and is disputed", "0259", disputes=True),
    )
}
