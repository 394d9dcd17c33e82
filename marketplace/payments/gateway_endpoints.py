"""The two webhook endpoints at the gateway: the market's own events, and those of accounts."""

from __future__ import annotations

import logging
from datetime import datetime

from cryptography.fernet import InvalidToken
from django.conf import settings
from django.db.models import Max

from marketplace.accounts.models import User
from marketplace.common.encryption import decrypt_text, encrypt_text
from marketplace.common.errors import NotAllowed
from marketplace.payments.models import EndpointServes, GatewayEndpoint, WebhookEvent
from marketplace.payments.stripe_client import API_VERSION, call_gateway, get_client, is_configured

log = logging.getLogger(__name__)

#: Where the gateway sends both to.
WEBHOOK_PATH = "/webhooks/stripe"
#: The events that change something here, by whose they are.
EVENTS = {
    EndpointServes.MARKET: (
        "payment_intent.succeeded",
        "payment_intent.payment_failed",
        "payment_intent.canceled",
        "payment_intent.requires_action",
        "payment_intent.amount_capturable_updated",
        "refund.failed",
        "refund.updated",
        "charge.dispute.created",
        "charge.dispute.updated",
        "charge.dispute.closed",
        "charge.dispute.funds_withdrawn",
        "charge.dispute.funds_reinstated",
        "radar.early_fraud_warning.created",
        "review.opened",
        "review.closed",
    ),
    EndpointServes.ACCOUNTS: (
        "account.updated",
        "account.application.deauthorized",
        "payout.paid",
        "payout.failed",
        "payout.canceled",
    ),
}


def list_webhook_secrets() -> list[str]:
    """What webhooks may be signed with: of the settings, and of endpoints made from here."""
    given = [settings.STRIPE_WEBHOOK_SECRET, settings.STRIPE_ACCOUNTS_WEBHOOK_SECRET]
    found = [secret for secret in given if secret]
    for endpoint in GatewayEndpoint.objects.order_by("serves"):
        try:
            found.append(decrypt_text(endpoint.secret))
        except InvalidToken:
            # The others still open.
            log.error("no key of the market opens the secret of %s", endpoint)
    return found


def create_endpoints(*, created_by: User, now: datetime) -> list[GatewayEndpoint]:
    """Make the endpoints that are missing, and store their secrets; call outside transactions.

    The gateway tells a secret once. An endpoint whose secret was lost on the way is removed there
    before another one is made.

    Raises
    ------
    NotAllowed
        ``operators_only``, or ``no_cards``: no key of the gateway is set.
    """
    if not created_by.is_operator:
        raise NotAllowed("operators_only", "Only an operator connects the gateway.")
    if not is_configured():
        raise NotAllowed("no_cards", "Set STRIPE_SECRET_KEY first.")
    url = f"{settings.PUBLIC_URL}{WEBHOOK_PATH}"
    known = set(GatewayEndpoint.objects.filter(url=url).values_list("serves", flat=True))
    return [_create(serves, url, now=now) for serves in EVENTS if serves not in known]


def _create(serves: EndpointServes, url: str, *, now: datetime) -> GatewayEndpoint:
    is_of_accounts = serves == EndpointServes.ACCOUNTS
    mark = {"finetender": serves.value}
    client = get_client().v1.webhook_endpoints
    listed = call_gateway(lambda: list(client.list({"limit": 100}).auto_paging_iter()))
    for found in listed:
        if found.url == url and getattr(found.metadata, "finetender", "") == serves.value:
            call_gateway(lambda gateway_id=found.id: client.delete(gateway_id))
    made = call_gateway(
        lambda: client.create(
            {
                "url": url,
                "enabled_events": list(EVENTS[serves]),  # type: ignore[typeddict-item]
                "connect": is_of_accounts,
                "api_version": API_VERSION,  # type: ignore[typeddict-item]
                "metadata": mark,
            }
        )
    )
    endpoint, _ = GatewayEndpoint.objects.update_or_create(
        serves=serves,
        defaults={
            "gateway_id": made.id,
            "url": url,
            "secret": encrypt_text(made.secret or ""),
            "made_at": now,
        },
    )
    return endpoint


def find_last_seen() -> dict[str, datetime]:
    """When an event of each kind was last received."""
    seen = WebhookEvent.objects.values_list("kind").annotate(at=Max("received_at")).order_by()
    return dict(seen)
