"""How operations and fields become their descriptions, where drf-spectacular would guess."""

from __future__ import annotations

from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers

from marketplace.api.answers import Answer
from marketplace.api.idempotency import HEADER, KEY_LIMIT

_IDEMPOTENCY_KEY = OpenApiParameter(
    HEADER,
    {"type": "string", "minLength": 1, "maxLength": KEY_LIMIT},
    OpenApiParameter.HEADER,
    description="Any text of your own, such as a random UUID. The same request under the same key "
    "is done once, and answered the same for a day.",
)


class MarketSchema(AutoSchema):
    """Describes what clients are generated from."""

    def get_override_parameters(self) -> list[Any]:
        takes_key = self.method == "POST" and getattr(self.view, "takes_idempotency_key", False)
        return [_IDEMPOTENCY_KEY] if takes_key else []

    def _map_serializer_field(
        self, field: Any, direction: Any, bypass_extensions: bool = False
    ) -> Any:
        found = super()._map_serializer_field(field, direction, bypass_extensions)
        if isinstance(field, serializers.FileField):
            # An answer has no files, so this is what a form brings.
            return {name: found[name] for name in ("description",) if name in found} | {
                "type": "string",
                "format": "binary",
            }
        return found

    def _get_serializer_field_meta(self, field: Any, direction: Any) -> Any:
        meta = super()._get_serializer_field_meta(field, direction)
        is_text = isinstance(field, serializers.CharField) and not field.allow_blank
        if is_text and not _is_answered(field):
            meta["minLength"] = 1
        return meta


def add_servers(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Say where the operations are: where the document is, as a hook of drf-spectacular."""
    return result | {"servers": [{"url": "/", "description": "The market of this document."}]}


def _is_answered(field: Any) -> bool:
    """Whether a field is a member of an answer, which shows texts as they are."""
    while field is not None and not isinstance(field, Answer):
        field = field.parent
    return field is not None
