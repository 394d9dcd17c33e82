"""What an operator sees of the connection to the gateway, and a payment of test money to try it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.conf import settings

from marketplace.accounts.models import User
from marketplace.common.errors import NotAllowed, UserError
from marketplace.payments.gateway_endpoints import EVENTS, WEBHOOK_PATH, find_last_seen
from marketplace.payments.models import EndpointServes, GatewayEndpoint
from marketplace.payments.stripe_client import (
    GatewayFault,
    call_gateway,
    get_client,
    is_configured,
)

#: What the ledger is kept in, so what the account has to settle in.
CURRENCY = "usd"


@dataclass(frozen=True, slots=True)
class EventSeen:
    kind: str
    #: When the last one came; none did where it is ``None``.
    at: datetime | None


@dataclass(frozen=True, slots=True)
class EndpointShown:
    """One of the two endpoints."""

    label: str
    url: str
    #: Its secret is known: made from here, or given in the settings.
    is_known: bool
    events: tuple[EventSeen, ...]


@dataclass(frozen=True, slots=True)
class Connection:
    """How the market stands with the gateway."""

    is_configured: bool
    is_test_key: bool
    endpoints: tuple[EndpointShown, ...]
    #: The market's account there; empty where it could not be asked.
    account_id: str = ""
    country: str = ""
    currency: str = ""
    takes_charges: bool = False
    #: Why the account could not be asked.
    fault: str = ""

    @property
    def is_in_dollars(self) -> bool:
        return self.currency in ("", CURRENCY)


def load_connection() -> Connection:
    """Ask the gateway who we are; call outside transactions."""
    seen = find_last_seen()
    known = set(GatewayEndpoint.objects.values_list("serves", flat=True))
    given = {
        EndpointServes.MARKET: settings.STRIPE_WEBHOOK_SECRET,
        EndpointServes.ACCOUNTS: settings.STRIPE_ACCOUNTS_WEBHOOK_SECRET,
    }
    labels = {
        EndpointServes.MARKET: "Events of the market's own account",
        EndpointServes.ACCOUNTS: "Events of connected accounts",
    }
    url = f"{settings.PUBLIC_URL}{WEBHOOK_PATH}"
    endpoints = tuple(
        EndpointShown(
            label=labels[serves],
            url=url,
            is_known=serves in known or bool(given[serves]),
            events=tuple(EventSeen(kind, seen.get(kind)) for kind in kinds),
        )
        for serves, kinds in EVENTS.items()
    )
    is_test_key = settings.STRIPE_SECRET_KEY.startswith(("sk_test_", "rk_test_"))
    if not is_configured():
        return Connection(False, is_test_key, endpoints)
    try:
        account = call_gateway(lambda: get_client().v1.accounts.retrieve_current())
    except (GatewayFault, UserError) as fault:
        return Connection(True, is_test_key, endpoints, fault=str(fault))
    return Connection(
        is_configured=True,
        is_test_key=is_test_key,
        endpoints=endpoints,
        account_id=account.id,
        country=account.country or "",
        currency=account.default_currency or "",
        takes_charges=bool(account.charges_enabled),
    )


def try_test_payment(*, asked_by: User, now: datetime) -> str:
    """Pay a dollar with a test card and send it back; the PaymentIntent's id.

    It is none of the market's payments: its events are answered with "not a payment of ours".

    Raises
    ------
    NotAllowed
        ``operators_only``, or ``real_money``: the key is not one of test money.
    """
    if not asked_by.is_operator:
        raise NotAllowed("operators_only", "Only an operator tries the gateway.")
    if not settings.STRIPE_SECRET_KEY.startswith(("sk_test_", "rk_test_")):
        raise NotAllowed("real_money", "This key moves real money: pay with a card of your own.")
    key = f"try-{now:%Y%m%d%H%M%S}"
    made = call_gateway(
        lambda: get_client().v1.payment_intents.create(
            {
                "amount": 100,
                "currency": CURRENCY,
                "payment_method": "pm_card_visa",
                "allowed_payment_method_types": ["card"],
                "confirm": True,
                "description": "A try of the connection",
            },
            {"idempotency_key": key},
        )
    )
    call_gateway(
        lambda: get_client().v1.refunds.create(
            {"payment_intent": made.id}, {"idempotency_key": f"{key}-back"}
        )
    )
    return made.id
