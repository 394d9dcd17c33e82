"""The only row locks of webhooks, in their order: an endpoint, then its messages."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from marketplace.webhooks.models import MessageStatus, WebhookEndpoint, WebhookMessage


def lock_endpoint(endpoint_id: str) -> WebhookEndpoint | None:
    """The endpoint; ``None`` where it was deleted."""
    return WebhookEndpoint.objects.select_for_update().filter(pk=endpoint_id).first()


def lock_message(message_id: str, *, endpoint_id: str) -> WebhookMessage | None:
    """One of an endpoint's messages."""
    messages = WebhookMessage.objects.select_for_update()
    return messages.filter(pk=message_id, endpoint_id=endpoint_id).first()


def lock_due_messages(ids: Collection[str], *, now: datetime) -> list[WebhookMessage]:
    """Those of the messages that are still due, oldest first; what is locked is left out."""
    free = WebhookMessage.objects.select_for_update(skip_locked=True, of=("self",))
    due = free.filter(pk__in=ids, status=MessageStatus.PENDING, due_at__lte=now)
    return list(due.select_related("endpoint").order_by("due_at", "pk"))
