"""What the gateway, or a card's bank, doubts of a payment: disputes, warnings, reviews."""

from __future__ import annotations

from dataclasses import dataclass

from marketplace.payments.stripe_client import call_gateway, get_client, read_id


@dataclass(frozen=True, slots=True)
class ChargebackState:
    """A chargeback as it is now; the gateway calls it a dispute."""

    gateway_id: str
    charge_id: str
    intent_id: str
    amount_cents: int
    reason: str
    #: None while the bank decides.
    won: bool | None
    #: The bank only asks: no money has moved, and none does unless it becomes a chargeback.
    is_inquiry: bool = False


def get_chargeback(gateway_id: str) -> ChargebackState:
    found = call_gateway(lambda: get_client().v1.disputes.retrieve(gateway_id))
    # One that was prevented takes no money; one that is appealed is open until that is decided.
    outcome = {"won": True, "warning_closed": True, "prevented": True, "lost": False}
    return ChargebackState(
        gateway_id=found.id,
        charge_id=read_id(found.charge),
        intent_id=read_id(found.payment_intent),
        amount_cents=found.amount,
        reason=found.reason,
        won=outcome.get(found.status),
        is_inquiry=found.status.startswith("warning_") or found.status == "prevented",
    )


def find_warned_intent(gateway_id: str) -> str:
    """The PaymentIntent that an early fraud warning is about; empty where it is none of ours."""
    found = call_gateway(lambda: get_client().v1.radar.early_fraud_warnings.retrieve(gateway_id))
    return read_id(found.payment_intent) if found.actionable else ""


@dataclass(frozen=True, slots=True)
class ReviewState:
    """A payment that the gateway wants a person to look at, as that stands now."""

    #: Empty where it is none of ours.
    intent_id: str
    is_open: bool
    #: Somebody looked and let the payment stand.
    is_approved: bool


def get_review(gateway_id: str) -> ReviewState:
    found = call_gateway(lambda: get_client().v1.reviews.retrieve(gateway_id))
    is_approved = found.closed_reason in ("approved", "acknowledged")
    return ReviewState(read_id(found.payment_intent), found.open, is_approved)
