"""The payment gateway, Stripe, through its official client; nothing else here knows it.

Each call is made outside of any transaction and carries an idempotency key. What comes back are
frozen values of our own. Two failures exist: ``GatewayRefused`` is the gateway's no;
``GatewayFault`` means that it is not known what happened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import stripe
from django.conf import settings
from stripe import StripeClient

from marketplace.common.errors import MarketFault, NotAllowed, NotFound, UserError

#: What the requests and the answers look like; the client's own.
API_VERSION = "2026-10-28.endive"
#: Seconds that one call may take.
TIMEOUT_S = 20.0
#: The least that card networks take, in cents.
CARD_MIN_CENTS = 50
#: The most that one card payment may be: the gateway takes eight digits.
CARD_MAX_CENTS = 99_999_999
#: Names our row in the gateway's objects.
OUR_ROW = "finetender"

Answer = TypeVar("Answer")


class GatewayFault(MarketFault):
    """The gateway is down or answered a fault; what it did is not known."""

    def __init__(self, message: str, *, is_kept: bool) -> None:
        super().__init__(message)
        #: Whether the same idempotency key would be answered with the same fault.
        self.is_kept = is_kept


class GatewayRefused(UserError):
    """The gateway's answer is no."""

    default_status = 402


@dataclass(frozen=True, slots=True)
class Card:
    """A card as the gateway knows it."""

    gateway_id: str
    brand: str
    last4: str
    exp_month: int
    exp_year: int


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
    #: What the gateway kept of the charge, once it is known.
    fee_cents: int | None
    #: Why the last card did not work.
    failure: str
    #: Our row.
    payment_id: str


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


@dataclass(frozen=True, slots=True)
class Movement:
    """A balance transaction: what one object did to the money at the gateway."""

    source_id: str
    #: Stripe's word, such as ``charge`` or ``transfer``.
    kind: str
    amount_cents: int
    #: Without the gateway's fee.
    net_cents: int


@dataclass(frozen=True, slots=True)
class AccountState:
    """A connected account as it is now."""

    gateway_id: str
    #: It can be paid, and can pay its bank.
    is_ready: bool
    #: What is still to be said about it.
    needs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PayoutState:
    """A payout to a bank as it is now."""

    gateway_id: str
    #: Stripe's word: ``paid``, ``pending``, ``in_transit``, ``failed`` or ``canceled``.
    status: str
    failure: str
    #: Our name for the attempt.
    payout_id: str


@dataclass(frozen=True, slots=True)
class GatewayEvent:
    """A webhook whose signature is right."""

    gateway_id: str
    kind: str
    object_id: str
    account_id: str


def is_configured() -> bool:
    """Whether this market takes cards."""
    return bool(settings.STRIPE_SECRET_KEY)


def is_test_money() -> bool:
    """Whether the gateway is the stand-in, which charges no card."""
    return bool(settings.STRIPE_API_URL)


def ensure_customer(*, organisation_id: str, name: str) -> str:
    """The gateway's customer for an organisation; the same one when asked again."""
    made = _call(
        lambda: _client().v1.customers.create(
            {"name": name, "metadata": {OUR_ROW: organisation_id}},
            {"idempotency_key": f"customer-{organisation_id}"},
        )
    )
    return made.id


def create_intent(
    *,
    payment_id: str,
    amount_cents: int,
    customer_id: str,
    is_captured_later: bool,
    saves_card: bool,
    card_id: str | None,
    off_session: bool,
    return_url: str,
    description: str,
    key: str,
) -> Intent:
    """Make a PaymentIntent; with a saved card, confirm it as well."""
    asked: dict[str, Any] = {
        "amount": amount_cents,
        "currency": "usd",
        "customer": customer_id,
        "capture_method": "manual" if is_captured_later else "automatic",
        "allowed_payment_method_types": ["card"],
        "metadata": {OUR_ROW: payment_id},
        "description": description,
        "expand": ["latest_charge.balance_transaction", "payment_method"],
    }
    if saves_card:
        asked["setup_future_usage"] = "off_session"
    if card_id is not None:
        asked |= {"payment_method": card_id, "confirm": True}
        asked |= {"off_session": True} if off_session else {"return_url": return_url}
    made = _call(
        lambda: _client().v1.payment_intents.create(asked, {"idempotency_key": key})  # type: ignore[arg-type]
    )
    return _read_intent(made)


def find_intent(*, payment_id: str, customer_id: str) -> Intent | None:
    """The PaymentIntent that was made for a payment, if one was."""
    listed = _call(
        lambda: _client().v1.payment_intents.list({"customer": customer_id, "limit": 100})
    )
    for found in listed.auto_paging_iter():
        if _read_name(found) == payment_id:
            return get_intent(found.id)
    return None


def get_intent(gateway_id: str) -> Intent:
    expand = {"expand": ["latest_charge.balance_transaction", "payment_method"]}
    return _read_intent(
        _call(lambda: _client().v1.payment_intents.retrieve(gateway_id, expand))  # type: ignore[arg-type]
    )


def capture_intent(*, gateway_id: str, amount_cents: int, key: str) -> Intent:
    """Take part or all of an authorised amount; the gateway releases the rest."""
    _call(
        lambda: _client().v1.payment_intents.capture(
            gateway_id, {"amount_to_capture": amount_cents}, {"idempotency_key": key}
        )
    )
    return get_intent(gateway_id)


def cancel_intent(*, gateway_id: str, key: str) -> Intent:
    _call(lambda: _client().v1.payment_intents.cancel(gateway_id, {}, {"idempotency_key": key}))
    return get_intent(gateway_id)


def create_refund(*, refund_id: str, intent_id: str, amount_cents: int, key: str) -> None:
    """Send money back to the card of a payment."""
    _call(
        lambda: _client().v1.refunds.create(
            {
                "payment_intent": intent_id,
                "amount": amount_cents,
                "metadata": {OUR_ROW: refund_id},
            },
            {"idempotency_key": key},
        )
    )


def has_refund(*, refund_id: str, intent_id: str) -> bool:
    """Whether a refund that we name so was made."""
    listed = _call(lambda: _client().v1.refunds.list({"payment_intent": intent_id, "limit": 100}))
    return any(_read_name(found) == refund_id for found in listed.auto_paging_iter())


def get_chargeback(gateway_id: str) -> ChargebackState:
    found = _call(lambda: _client().v1.disputes.retrieve(gateway_id))
    outcome = {"won": True, "warning_closed": True, "lost": False}
    return ChargebackState(
        gateway_id=found.id,
        charge_id=_id_of(found.charge),
        intent_id=_id_of(found.payment_intent),
        amount_cents=found.amount,
        reason=found.reason,
        won=outcome.get(found.status),
    )


def remove_card(gateway_id: str, *, key: str) -> None:
    """Forget a saved card; one that is gone already stays so."""
    try:
        _call(lambda: _client().v1.payment_methods.detach(gateway_id, {}, {"idempotency_key": key}))
    except NotFound:
        return


def ensure_account(*, organisation_id: str) -> str:
    """A connected account for an organisation; the same one when asked again.

    The market bears its losses and pays its fees; the gateway asks who it is; it pays its bank only
    when told to, so that a payout that fails is seen and tried again here.
    """
    made = _call(
        lambda: _client().v1.accounts.create(
            {
                "controller": {
                    "fees": {"payer": "application"},
                    "losses": {"payments": "application"},
                    "stripe_dashboard": {"type": "express"},
                },
                "capabilities": {"transfers": {"requested": True}},
                "settings": {"payouts": {"schedule": {"interval": "manual"}}},
                "metadata": {OUR_ROW: organisation_id},
            },
            {"idempotency_key": f"account-{organisation_id}"},
        )
    )
    return made.id


def create_onboarding_link(*, account_id: str, return_url: str) -> str:
    """Where the gateway asks who an account is; good for some minutes and one visit."""
    made = _call(
        lambda: _client().v1.account_links.create(
            {
                "account": account_id,
                "type": "account_onboarding",
                "return_url": return_url,
                "refresh_url": return_url,
            }
        )
    )
    return made.url


def get_account(account_id: str) -> AccountState:
    found = _call(lambda: _client().v1.accounts.retrieve(account_id))
    needs = found.requirements and found.requirements.currently_due
    return AccountState(
        gateway_id=found.id,
        is_ready=bool(found.payouts_enabled),
        needs=tuple(needs or ()),
    )


def create_transfer(
    *, transfer_id: str, amount_cents: int, account_id: str, group: str, key: str
) -> str:
    """Move money to a connected account; the transfer's id."""
    made = _call(
        lambda: _client().v1.transfers.create(
            {
                "amount": amount_cents,
                "currency": "usd",
                "destination": account_id,
                "transfer_group": group,
                "metadata": {OUR_ROW: transfer_id},
            },
            {"idempotency_key": key},
        )
    )
    return made.id


def find_transfer(*, transfer_id: str, group: str) -> str | None:
    """The transfer that we name so, if it was made."""
    listed = _call(lambda: _client().v1.transfers.list({"transfer_group": group, "limit": 100}))
    named = (found.id for found in listed.auto_paging_iter() if _read_name(found) == transfer_id)
    return next(named, None)


def create_reversal(*, transfer_gateway_id: str, amount_cents: int, key: str) -> None:
    """Take a transfer back, wholly or in part."""
    _call(
        lambda: _client().v1.transfers.reversals.create(
            transfer_gateway_id, {"amount": amount_cents}, {"idempotency_key": key}
        )
    )


def is_reversed(transfer_gateway_id: str) -> bool:
    """Whether anything of a transfer was taken back."""
    return _call(lambda: _client().v1.transfers.retrieve(transfer_gateway_id)).amount_reversed > 0


def create_payout(*, payout_id: str, amount_cents: int, account_id: str, key: str) -> PayoutState:
    """Let a connected account pay its bank."""
    return _read_payout(
        _call(
            lambda: _client().v1.payouts.create(
                {"amount": amount_cents, "currency": "usd", "metadata": {OUR_ROW: payout_id}},
                {"idempotency_key": key, "stripe_account": account_id},
            )
        )
    )


def find_payout(*, payout_id: str, account_id: str) -> PayoutState | None:
    """The payout to a bank that we name so, if it was made."""
    listed = _call(
        lambda: _client().v1.payouts.list({"limit": 100}, {"stripe_account": account_id})
    )
    named = (found for found in listed.auto_paging_iter() if _read_name(found) == payout_id)
    return next(map(_read_payout, named), None)


def get_payout(gateway_id: str, *, account_id: str) -> PayoutState:
    return _read_payout(
        _call(lambda: _client().v1.payouts.retrieve(gateway_id, {}, {"stripe_account": account_id}))
    )


def list_movements() -> list[Movement]:
    """Everything that ever moved the market's money at the gateway."""
    listed = _call(lambda: _client().v1.balance_transactions.list({"limit": 100}))
    return [
        Movement(_id_of(found.source), found.type, found.amount, found.net)
        for found in listed.auto_paging_iter()
    ]


def read_event(*, body: bytes, signature: str) -> GatewayEvent:
    """The event that a webhook brings, once its signature is found to be the gateway's.

    Raises
    ------
    UserError
        ``invalid_signature``: it is forged, altered or too old.
    """
    if not settings.STRIPE_WEBHOOK_SECRET:
        raise NotAllowed("no_webhooks", "This market expects no webhooks.")
    try:
        event = stripe.Webhook.construct_event(  # type: ignore[no-untyped-call]
            body, signature, settings.STRIPE_WEBHOOK_SECRET, api_key=settings.STRIPE_SECRET_KEY
        )
    except (ValueError, stripe.SignatureVerificationError):
        raise UserError("invalid_signature", "The signature does not match the body.") from None
    return GatewayEvent(
        gateway_id=event.id,
        kind=event.type,
        object_id=str(getattr(event.data.object, "id", ""))[:120],
        account_id=str(getattr(event, "account", None) or "")[:120],
    )


def _call(call: Callable[[], Answer]) -> Answer:
    """Make one call and put its failures into our words."""
    try:
        return call()
    except stripe.APIConnectionError as error:
        raise GatewayFault(f"the gateway did not answer: {error}", is_kept=False) from None
    except stripe.RateLimitError as error:
        raise GatewayFault(f"the gateway wants fewer calls: {error}", is_kept=False) from None
    except (stripe.CardError, stripe.InvalidRequestError, stripe.IdempotencyError) as error:
        # 409: the first call with this key is still at work, or a lock timed out.
        if error.http_status == 409:
            raise GatewayFault(f"the gateway is at it: {error}", is_kept=False) from None
        decline_code = error.error and error.error.to_dict().get("decline_code")
        code = str(decline_code or error.code or "gateway_refused")
        message = error.user_message or "The gateway refused the payment."
        if error.code == "resource_missing":
            raise NotFound("unknown_at_gateway", message) from None
        raise GatewayRefused(code, message, extra={"code": error.code or ""}) from None
    except (stripe.AuthenticationError, stripe.PermissionError) as error:
        raise GatewayFault(f"the gateway does not take our key: {error}", is_kept=False) from None
    except stripe.StripeError as error:
        raise GatewayFault(f"the gateway failed: {error}", is_kept=True) from None


def _client() -> StripeClient:
    return _make_client(settings.STRIPE_SECRET_KEY, settings.STRIPE_API_URL)


@cache
def _make_client(secret_key: str, api_url: str) -> StripeClient:
    if not secret_key:
        raise NotAllowed("no_cards", "This market takes no cards.")
    # Repeats are the outbox's: it knows what to look for before the next attempt.
    return StripeClient(
        secret_key,
        stripe_version=API_VERSION,
        base_addresses={"api": api_url} if api_url else {},
        max_network_retries=0,
        http_client=stripe.RequestsClient(timeout=TIMEOUT_S),
    )


def _read_payout(found: stripe.Payout) -> PayoutState:
    return PayoutState(
        gateway_id=found.id,
        status=found.status,
        failure=found.failure_message or "",
        payout_id=_read_name(found),
    )


def _read_intent(found: stripe.PaymentIntent) -> Intent:
    charge = found.latest_charge
    transaction = getattr(charge, "balance_transaction", None)
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
        charge_id=_id_of(charge),
        card=_read_card(method) if isinstance(method, stripe.PaymentMethod) else None,
        fee_cents=getattr(transaction, "fee", None),
        failure=(error and error.message) or "",
        payment_id=_read_name(found),
    )


def _read_card(method: stripe.PaymentMethod) -> Card | None:
    card = method.card
    if card is None:
        return None
    return Card(method.id, card.brand, card.last4 or "", card.exp_month, card.exp_year)


def _read_name(found: Any) -> str:
    """Our row, as the gateway's object names it."""
    return getattr(found.metadata, OUR_ROW, "") or ""


def _id_of(value: Any) -> str:
    """The id of an object that may stand there whole."""
    return value if isinstance(value, str) else getattr(value, "id", "") or ""
