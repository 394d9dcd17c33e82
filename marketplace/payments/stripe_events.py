"""Events of the payment gateway: those that webhooks bring, and those that it still knows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.conf import settings

from marketplace.common.errors import NotAllowed, UserError
from marketplace.payments.gateway_endpoints import list_webhook_secrets
from marketplace.payments.stripe_client import call_gateway, get_client

if TYPE_CHECKING:
    import stripe


@dataclass(frozen=True, slots=True)
class GatewayEvent:
    """A webhook whose signature is right."""

    gateway_id: str
    kind: str
    object_id: str
    account_id: str


def read_event(*, body: bytes, signature: str) -> GatewayEvent:
    """The event that a webhook brings, once its signature is found to be the gateway's.

    The gateway signs events of the market and of connected accounts with secrets of their own.

    Raises
    ------
    UserError
        ``invalid_signature``: it is forged, altered or too old.
    """
    import stripe

    secrets = list_webhook_secrets()
    if not secrets:
        raise NotAllowed("no_webhooks", "This market expects no webhooks.")
    for secret in secrets:
        try:
            event = stripe.Webhook.construct_event(  # type: ignore[no-untyped-call]
                body, signature, secret, api_key=settings.STRIPE_SECRET_KEY
            )
        except (ValueError, stripe.SignatureVerificationError):
            continue
        return _read_event(event)
    raise UserError("invalid_signature", "The signature does not match the body.")


def list_events(
    *, since: datetime, account_id: str, with_delivered: bool = False
) -> list[GatewayEvent]:
    """Events that no webhook brought yet, or all of them: the market's, or an account's."""
    asked: Any = {"created": {"gte": int(since.timestamp())}}
    asked |= {} if with_delivered else {"delivery_success": False}
    of_whom: Any = {"stripe_account": account_id} if account_id else {}
    listed = call_gateway(
        lambda: list(
            get_client().v1.events.list(asked | {"limit": 100}, of_whom).auto_paging_iter()
        )
    )
    return [replace(_read_event(found), account_id=account_id) for found in listed]


def _read_event(found: stripe.Event) -> GatewayEvent:
    return GatewayEvent(
        gateway_id=found.id,
        kind=found.type,
        object_id=str(getattr(found.data.object, "id", ""))[:120],
        account_id=str(getattr(found, "account", None) or "")[:120],
    )
