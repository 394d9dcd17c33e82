"""Early fraud warnings of a card's bank, and reviews that Radar asks a person for."""

from __future__ import annotations

from marketplace.embedded.stripe_stand_in.store import Store, Thing


class Doubts(Store):
    """What is said of a payment without moving its money."""

    def warn_of_fraud(self, intent_name: str) -> Thing:
        intent = self.get("payment_intent", intent_name)
        warning = self.add(
            "issfr",
            "radar.early_fraud_warning",
            actionable=True,
            charge=intent["latest_charge"],
            fraud_type="made_with_stolen_card",
            payment_intent=intent_name,
        )
        self.announce("radar.early_fraud_warning.created", warning)
        return warning

    def open_review(self, intent_name: str) -> Thing:
        intent = self.get("payment_intent", intent_name)
        review = self.add(
            "prv",
            "review",
            charge=intent["latest_charge"],
            closed_reason=None,
            open=True,
            opened_reason="rule",
            payment_intent=intent_name,
            reason="rule",
        )
        self.announce("review.opened", review)
        return review

    def close_review(self, name: str, reason: str) -> Thing:
        review = self.get("review", name)
        review |= {"open": False, "closed_reason": reason, "reason": reason}
        self.announce("review.closed", review)
        return review
