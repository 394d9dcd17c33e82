"""The shapes of ``/api/keys`` for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import inline_serializer
from rest_framework import serializers as s

from marketplace.api.market.schemas import page_of


def _key_fields() -> dict[str, Any]:
    return {
        "id": s.CharField(),
        "object": s.CharField(),
        "name": s.CharField(),
        "prefix": s.CharField(help_text="What the secret begins with."),
        "scopes": s.ListField(child=s.CharField()),
        "bid_price": s.CharField(
            allow_null=True, help_text="What it bids where a request says nothing, in dollars."
        ),
        "bid_deadline_s": s.IntegerField(allow_null=True),
        "created_at": s.DateTimeField(),
        "expires_at": s.DateTimeField(allow_null=True),
        "earlier_secret_until": s.DateTimeField(
            allow_null=True, help_text="Until then, the secret that was replaced may be used."
        ),
        "last_used_at": s.DateTimeField(allow_null=True, help_text="To the minute."),
    }


KEY = inline_serializer(name="Key", fields=_key_fields())
KEY_PAGE = page_of("KeyPage", KEY)
KEY_WITH_SECRET = inline_serializer(
    name="KeyWithSecret",
    fields={**_key_fields(), "secret": s.CharField(help_text="Shown once: ft_…")},
)
