"""A payment of test money that an operator asks for to try the connection to the gateway.

It is a call of the outbox, as every effect there is: made once, and known when its charge shows
among the gateway's movements.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from marketplace.payments.models import CallKind, GatewayCall
from marketplace.payments.stripe_client import (
    OUR_ROW,
    call_gateway,
    find_named,
    get_client,
    read_id,
)

_CENTS = 100
#: Ids of a PaymentIntent, its charge and its refund.
_Tried = tuple[str, str, str]


def make_try(call: GatewayCall) -> _Tried:
    """Pay a dollar with a test card and send it back; the ids of what that made."""
    asked: Any = {
        "amount": _CENTS,
        "currency": "usd",
        "payment_method": "pm_card_visa",
        "allowed_payment_method_types": ["card"],
        "confirm": True,
        "description": "A try of the connection",
        "metadata": {OUR_ROW: call.pk},
    }
    made = call_gateway(
        lambda: get_client().v1.payment_intents.create(asked, {"idempotency_key": call.key})
    )
    return _send_back(call, made.id, read_id(made.latest_charge))


def find_try(call: GatewayCall) -> _Tried | None:
    """What an attempt before has paid, sent back by now."""
    found = find_named({"": call.pk}, lambda: get_client().v1.payment_intents.list({"limit": 100}))
    return None if found is None else _send_back(call, found.id, read_id(found.latest_charge))


def _send_back(call: GatewayCall, intent_id: str, charge_id: str) -> _Tried:
    # One key however often the payment was tried: what was sent back is answered again.
    refund = call_gateway(
        lambda: get_client().v1.refunds.create(
            {"payment_intent": intent_id}, {"idempotency_key": f"{call.pk}-back"}
        )
    )
    return intent_id, charge_id, refund.id


def conclude_try(call: GatewayCall, *, answer: _Tried, now: datetime) -> None:
    call.arguments = dict(zip(("intent_id", "charge_id", "refund_id"), answer, strict=True))


def list_tried() -> set[str]:
    """The charges and refunds of tries: nobody's payment, and sent back."""
    tries = GatewayCall.objects.filter(kind=CallKind.TRY)
    ids = tries.values_list("arguments__charge_id", "arguments__refund_id")
    return {one for pair in ids for one in pair if one is not None}
