"""What an operator sees of the connection to the gateway, and a payment of test money to try it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db import transaction

from marketplace.accounts.models import User
from marketplace.common.errors import NotAllowed, UserError
from marketplace.payments.gateway_calls import run_call
from marketplace.payments.gateway_endpoints import EVENTS, WEBHOOK_PATH, find_last_seen
from marketplace.payments.models import (
    CallKind,
    CallStatus,
    EndpointServes,
    GatewayCall,
    GatewayEndpoint,
)
from marketplace.payments.outbox import WantedCall, add_calls
from marketplace.payments.stripe_client import (
    GatewayFault,
    GatewayRefused,
    call_gateway,
    get_client,
    is_configured,
)
from marketplace.payments.stripe_gateway import LEDGER_CURRENCY


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
        return self.currency in ("", LEDGER_CURRENCY)


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

    Raises
    ------
    NotAllowed
        ``operators_only``, or ``real_money``: the key is not one of test money.
    GatewayRefused
        The gateway's no.
    GatewayFault
        It is down; what was asked is made once it is back.
    """
    if not asked_by.is_operator:
        raise NotAllowed("operators_only", "Only an operator tries the gateway.")
    if not settings.STRIPE_SECRET_KEY.startswith(("sk_test_", "rk_test_")):
        raise NotAllowed("real_money", "This key moves real money: pay with a card of your own.")
    with transaction.atomic():
        add_calls([WantedCall(CallKind.TRY, f"{now:%Y%m%d%H%M%S}")], now=now)
    call = GatewayCall.objects.get(kind=CallKind.TRY, subject=f"{now:%Y%m%d%H%M%S}")
    run_call(call_id=call.pk, now=now)
    call.refresh_from_db()
    if call.status == CallStatus.REFUSED:
        raise GatewayRefused(call.error_code, call.error_message)
    if call.status != CallStatus.DONE:
        raise GatewayFault(call.error_message, is_kept=False)
    return call.arguments["intent_id"]
