"""The payment gateway, Stripe, through its official client; nothing else here knows it.

Each call is made outside of any transaction and carries an idempotency key. What comes back are
frozen values of our own. Two failures exist: ``GatewayRefused`` is the gateway's no;
``GatewayFault`` means that it is not known what happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from marketplace.common.errors import NotFound
from marketplace.payments.stripe_client import (
    OUR_ROW,
    GatewayFault,
    GatewayRefused,
    call_gateway,
    find_named,
    get_client,
    name_row,
    read_id,
    read_row_name,
)

if TYPE_CHECKING:
    import stripe

#: The least that card networks take, in cents.
CARD_MIN_CENTS = 50
#: The most that one card payment may be: the gateway takes eight digits.
CARD_MAX_CENTS = 99_999_999
#: What the ledger is kept in, and cards are charged in.
LEDGER_CURRENCY = "usd"
_REFUND_FAILED = ("failed", "canceled")


@dataclass(frozen=True, slots=True)
class Card:
    """A card as the gateway knows it."""

    gateway_id: str
    brand: str
    last4: str
    exp_month: int
    exp_year: int
    #: The same for a card, whoever pays with it.
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Intent:
    """A PaymentIntent as it is now."""

    gateway_id: str
    #: Stripe's word, such as ``requires_capture``.
    status: str
    amount_cents: int
    received_cents: int
    #: What the browser confirms it with.
    client_secret: str
    #: Where the card's owner confirms, while the bank wants that.
    action_url: str
    charge_id: str
    card: Card | None
    #: What the gateway kept of the charge, once it is known; cents of a dollar.
    fee_cents: int | None
    #: Why the last card did not work.
    failure: str
    #: Our row.
    payment_id: str


@dataclass(frozen=True, slots=True)
class Movement:
    """A balance transaction: what one object did to the money at the gateway."""

    gateway_id: str
    source_id: str
    #: Stripe's word, such as ``charge`` or ``transfer``.
    kind: str
    amount_cents: int
    fee_cents: int
    #: Without the gateway's fee.
    net_cents: int
    #: What the account settles in, such as ``usd``.
    currency: str
    #: What a dollar was worth in it; ``None``: nothing was converted.
    rate: Decimal | None
    moved_at: datetime


def create_customer(*, organisation_id: str, name: str, key: str) -> str:
    """A customer for an organisation; the same one when asked again with the key."""
    made = call_gateway(
        lambda: get_client().v1.customers.create(
            {"name": name, "metadata": {OUR_ROW: organisation_id}},
            {"idempotency_key": key},
        )
    )
    return made.id


@dataclass(frozen=True, slots=True)
class IntentRequest:
    """What a PaymentIntent is asked for with."""

    payment_id: str
    amount_cents: int
    customer_id: str
    #: What else a market that lost the payment needs to write it down again.
    lost_terms: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    #: Whether the amount is only authorised now.
    is_captured_later: bool = False
    #: Whether the card is saved for later payments.
    saves_card: bool = False
    #: The gateway's id of a saved card; ``None``: the owner gives one on the page.
    card_id: str | None = None
    #: Whether the card pays while its owner is not there.
    off_session: bool = False
    #: Whether the card's bank is to ask its owner (3-D Secure), and then bears fraud.
    asks_bank: bool = False
    #: Where the bank sends the owner of a saved card back to.
    return_url: str = ""

    def to_parameters(self) -> dict[str, Any]:
        """The gateway's own parameters; a saved card is confirmed at once."""
        parameters: dict[str, Any] = {
            "amount": self.amount_cents,
            "currency": LEDGER_CURRENCY,
            "customer": self.customer_id,
            "capture_method": "manual" if self.is_captured_later else "automatic",
            "allowed_payment_method_types": ["card"],
            "metadata": name_row(self.payment_id, **self.lost_terms),
            "description": self.description,
            "expand": ["latest_charge.balance_transaction", "payment_method"],
        }
        if self.saves_card:
            parameters["setup_future_usage"] = "off_session"
        if self.asks_bank:
            parameters["payment_method_options"] = {"card": {"request_three_d_secure": "any"}}
        if self.card_id is not None:
            parameters |= {"payment_method": self.card_id, "confirm": True}
            where = {"off_session": True} if self.off_session else {"return_url": self.return_url}
            parameters |= where
        return parameters


def create_intent(asked: IntentRequest, *, key: str) -> Intent:
    """Make a PaymentIntent, one for each key; with a saved card, confirm it as well."""
    parameters = asked.to_parameters()
    made = call_gateway(
        lambda: get_client().v1.payment_intents.create(parameters, {"idempotency_key": key})  # type: ignore[arg-type]
    )
    return _read_intent(made)


def find_intent(*, payment_id: str, customer_id: str, key: str = "") -> Intent | None:
    """The PaymentIntent that was made for a payment, or by a market that was lost for its key."""
    found = find_named(
        {"": payment_id, "key": key},
        lambda: get_client().v1.payment_intents.list({"customer": customer_id, "limit": 100}),
    )
    return None if found is None else get_intent(found.id)


def get_intent(gateway_id: str) -> Intent:
    expand = {"expand": ["latest_charge.balance_transaction", "payment_method"]}
    return _read_intent(
        call_gateway(lambda: get_client().v1.payment_intents.retrieve(gateway_id, expand))  # type: ignore[arg-type]
    )


def capture_intent(*, gateway_id: str, amount_cents: int, key: str) -> Intent:
    """Take part or all of an authorised amount; the gateway releases the rest."""
    call_gateway(
        lambda: get_client().v1.payment_intents.capture(
            gateway_id, {"amount_to_capture": amount_cents}, {"idempotency_key": key}
        )
    )
    return get_intent(gateway_id)


def cancel_intent(*, gateway_id: str, key: str) -> Intent:
    call_gateway(
        lambda: get_client().v1.payment_intents.cancel(gateway_id, {}, {"idempotency_key": key})
    )
    return get_intent(gateway_id)


def create_refund(
    *, refund_id: str, intent_id: str, amount_cents: int, key: str, reference: str = ""
) -> str:
    """Send money back to the card of a payment; ``reference`` names what for.

    Raises
    ------
    GatewayRefused
        The gateway refuses it, or it failed at once.
    """
    made = call_gateway(
        lambda: get_client().v1.refunds.create(
            {
                "payment_intent": intent_id,
                "amount": amount_cents,
                "metadata": name_row(refund_id, reference=reference),
            },
            {"idempotency_key": key},
        )
    )
    _refuse_failed(made)
    return made.id


def _refuse_failed(refund: stripe.Refund) -> None:
    if refund.status in _REFUND_FAILED:
        raise GatewayRefused("refund_failed", refund.failure_reason or "The refund failed.")


@dataclass(frozen=True, slots=True)
class RefundState:
    """A refund as it is now: it may fail days after it was made."""

    #: Our row.
    refund_id: str
    has_failed: bool
    failure: str


def get_refund(gateway_id: str) -> RefundState:
    found = call_gateway(lambda: get_client().v1.refunds.retrieve(gateway_id))
    has_failed = found.status in _REFUND_FAILED
    return RefundState(read_row_name(found), has_failed, found.failure_reason or "")


def find_refund(
    *, refund_id: str, intent_id: str, amount_cents: int, reference: str = ""
) -> str | None:
    """The refund that we name so, or that a market that was lost made for the same reference.

    Raises
    ------
    GatewayRefused
        It was made and has failed since.
    GatewayFault
        It was made with another amount: only an operator can say what is right.
    """
    found = find_named(
        {"": refund_id, "reference": reference},
        lambda: get_client().v1.refunds.list({"payment_intent": intent_id, "limit": 100}),
    )
    if found is None:
        return None
    _refuse_failed(found)
    if found.amount != amount_cents:
        text = f"{found.id} is for the same and of {found.amount} cents, not {amount_cents}"
        raise GatewayFault(text, is_kept=False)
    return found.id


def remove_card(gateway_id: str, *, key: str) -> None:
    """Forget a saved card; one that is gone already stays so."""
    try:
        call_gateway(
            lambda: get_client().v1.payment_methods.detach(gateway_id, {}, {"idempotency_key": key})
        )
    except NotFound:
        return


def list_movements(*, since: datetime | None) -> list[Movement]:
    """What moved the market's money at the gateway since a moment, or ever."""
    asked: Any = {} if since is None else {"created": {"gte": int(since.timestamp())}}
    listed = call_gateway(
        lambda: list(
            get_client().v1.balance_transactions.list(asked | {"limit": 100}).auto_paging_iter()
        )
    )
    return [
        Movement(
            gateway_id=found.id,
            source_id=read_id(found.source),
            kind=found.type,
            amount_cents=found.amount,
            fee_cents=found.fee,
            net_cents=found.net,
            currency=found.currency,
            rate=_read_rate(found),
            moved_at=datetime.fromtimestamp(found.created, UTC),
        )
        for found in listed
    ]


def _read_rate(found: stripe.BalanceTransaction) -> Decimal | None:
    if found.currency == LEDGER_CURRENCY:
        return Decimal(1)
    # As it stands in the answer, and not as the nearest binary fraction.
    return Decimal(str(found.exchange_rate)) if found.exchange_rate else None


def _read_fee(found: Any) -> int | None:
    """The fee in cents of a dollar, of a balance transaction that stands there whole."""
    import stripe

    rate = _read_rate(found) if isinstance(found, stripe.BalanceTransaction) else None
    return None if rate is None else round(found.fee / rate)


def _read_intent(found: stripe.PaymentIntent) -> Intent:
    import stripe

    charge = found.latest_charge
    method = found.payment_method
    action = found.next_action and found.next_action.redirect_to_url
    error = found.last_payment_error
    return Intent(
        gateway_id=found.id,
        status=found.status,
        amount_cents=found.amount,
        received_cents=found.amount_received,
        client_secret=found.client_secret or "",
        action_url=(action and action.url) or "",
        charge_id=read_id(charge),
        card=_read_card(method) if isinstance(method, stripe.PaymentMethod) else None,
        fee_cents=_read_fee(getattr(charge, "balance_transaction", None)),
        failure=(error and error.message) or "",
        payment_id=read_row_name(found),
    )


def _read_card(method: stripe.PaymentMethod) -> Card | None:
    card = method.card
    if card is None:
        return None
    return Card(
        gateway_id=method.id,
        brand=card.brand,
        last4=card.last4 or "",
        exp_month=card.exp_month,
        exp_year=card.exp_year,
        fingerprint=card.fingerprint or "",
    )
