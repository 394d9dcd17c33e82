"""The shapes of ``/api/webhooks`` for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import inline_serializer
from rest_framework import serializers as s

from marketplace.api.market.schemas import page_of
from marketplace.webhooks.models import MessageStatus


def _webhook_fields() -> dict[str, Any]:
    return {
        "id": s.CharField(),
        "object": s.CharField(),
        "url": s.CharField(),
        "events": s.ListField(child=s.CharField()),
        "created_at": s.DateTimeField(),
        "earlier_secret_until": s.DateTimeField(
            allow_null=True, help_text="Until then, messages are signed with the earlier one too."
        ),
        "disabled_at": s.DateTimeField(allow_null=True, help_text="Nothing is sent since then."),
        "disabled_reason": s.CharField(allow_null=True),
    }


def _delivery_fields() -> dict[str, Any]:
    return {
        "id": s.CharField(help_text="The webhook-id of every attempt."),
        "object": s.CharField(),
        "type": s.CharField(),
        "status": s.ChoiceField(MessageStatus.values),
        "body": s.CharField(help_text="As it was signed and sent."),
        "created_at": s.DateTimeField(),
        "due_at": s.DateTimeField(allow_null=True, help_text="Of the next attempt."),
        "attempts": inline_serializer(
            name="DeliveryAttempt",
            fields={
                "at": s.DateTimeField(),
                "status": s.IntegerField(allow_null=True),
                "error": s.CharField(),
                "took_s": s.FloatField(),
            },
            many=True,
        ),
    }


WEBHOOK = inline_serializer(name="Webhook", fields=_webhook_fields())
WEBHOOK_PAGE = page_of("WebhookPage", WEBHOOK)
WEBHOOK_WITH_SECRET = inline_serializer(
    name="WebhookWithSecret",
    fields={**_webhook_fields(), "secret": s.CharField(help_text="Shown once: whsec_…")},
)
DELIVERY = inline_serializer(name="WebhookDelivery", fields=_delivery_fields())
DELIVERY_PAGE = page_of("WebhookDeliveryPage", DELIVERY)
