"""The only row lock of webhooks: an endpoint, after the durable work of a message."""

from __future__ import annotations

from marketplace.webhooks.models import WebhookEndpoint


def lock_endpoint(endpoint_id: str) -> WebhookEndpoint | None:
    """The endpoint; ``None`` where it was deleted."""
    return WebhookEndpoint.objects.select_for_update().filter(pk=endpoint_id).first()
