"""How operations and fields become their descriptions, where drf-spectacular would guess."""

from __future__ import annotations

from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from rest_framework import serializers

from marketplace.api.answers import Answer
from marketplace.api.idempotency import HEADER, KEY_LIMIT
from marketplace.api.market.fields import StrictSerializer
from marketplace.api.request_examples import EXAMPLES
from marketplace.api.text_patterns import NO_NUL, NOT_BLANK, PRINTABLE_ASCII

_IDEMPOTENCY_KEY = OpenApiParameter(
    HEADER,
    {"type": "string", "minLength": 1, "maxLength": KEY_LIMIT, "pattern": PRINTABLE_ASCII},
    OpenApiParameter.HEADER,
    description="Any text of your own, such as a random UUID. The same request under the same key "
    "is done once, and answered the same for a day.",
)

#: What members mean that have no words of their own, and the parts of addresses.
COMMON_MEMBERS = {
    "adapter": "Settings of the adapter, with what the market chose.",
    "bytes": "Size in bytes.",
    "created_at": "When it was made.",
    "curve": "What it costs by some other deadlines.",
    "deadline": "When it is to be done.",
    "failure_reason": "Why it failed; null: it has not.",
    "finished_at": "When it ended; null: it has not.",
    "head_hash": "Hash of the zone's log up to that position.",
    "id": "What other requests name it by.",
    "model": "Name of a model, as GET /v1/models lists it.",
    "month": "Such as 2026-11, in UTC.",
    "name": "What people find it by.",
    "plan": "Cells, which are slots of nodes, that it would run in.",
    "position": "Position in the zone's log that the answer is true of.",
    "reason_text": "The same as a sentence, with what to do; null: nothing.",
    "sha256": "SHA-256 of the content, in hexadecimal digits.",
    "training": "Settings of the training, with what the market chose.",
    "work": "How much there is to do.",
    "zone": "Name of the zone.",
    "zone_name": "Name of the zone.",
}


class MarketSchema(AutoSchema):
    """Describes what clients are generated from."""

    def get_override_parameters(self) -> list[Any]:
        takes_key = self.method == "POST" and getattr(self.view, "takes_idempotency_key", False)
        queries = getattr(self.view, "queries", {}).get(self.method, ())
        return [*queries, *([_IDEMPOTENCY_KEY] if takes_key else ())]

    def _map_basic_serializer(self, serializer: Any, direction: Any) -> Any:
        found = super()._map_basic_serializer(serializer, direction)
        if isinstance(serializer, StrictSerializer):
            found["additionalProperties"] = False
        return found | getattr(serializer, "schema_rules", {})

    def _insert_field_validators(self, field: Any, schema: Any) -> None:
        super()._insert_field_validators(field, schema)
        if getattr(field, "allow_blank", False) and "oneOf" in schema:
            # Our patterns take an empty text, so it is no case of its own.
            schema.update(schema.pop("oneOf")[0])

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
        if isinstance(field, serializers.CharField) and not _is_answered(field):
            meta |= _describe_text(field)
        if "description" not in meta and isinstance(field.parent, serializers.Serializer):
            words = _find_words(field.field_name or "")
            meta |= {"description": words} if words else {}
        return meta

    def _get_examples(
        self,
        serializer: Any,
        direction: Any,
        media_type: str,
        status_code: str | None = None,
        extras: Any = None,
    ) -> Any:
        kind = serializer if isinstance(serializer, type) else type(serializer)
        example = EXAMPLES.get(kind.__name__) if direction == "request" else None
        if example is not None:
            extras = [OpenApiExample("Example", value=example, media_type=media_type)]
        return super()._get_examples(serializer, direction, media_type, status_code, extras)


def _describe_text(field: serializers.CharField) -> dict[str, Any]:
    """What a text of a request must be beside its length; a field's own pattern says it better."""
    is_trimmed = field.trim_whitespace and not field.allow_blank
    own = getattr(field, "pattern", None) or (NOT_BLANK if is_trimmed else NO_NUL)
    is_matched = isinstance(field, serializers.RegexField)
    return ({} if field.allow_blank else {"minLength": 1}) | (
        {} if is_matched else {"pattern": own}
    )


def describe_parts(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Say what stands in each part of an address, as a hook of drf-spectacular."""
    for methods in result["paths"].values():
        for operation in methods.values():
            for part in operation.get("parameters", ()):
                part.setdefault("description", _find_words(part["name"]))
    return result


def add_servers(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Say where the operations are: where the document is, as a hook of drf-spectacular."""
    return result | {"servers": [{"url": "/", "description": "The market of this document."}]}


def _find_words(name: str) -> str | None:
    if name.endswith("_id") and name not in COMMON_MEMBERS:
        what = name.removesuffix("_id").replace("_", " ").replace("dataset", "data set")
        return f"Id of the {what}."
    return COMMON_MEMBERS.get(name)


def _is_answered(field: Any) -> bool:
    """Whether a field is a member of an answer, which shows texts as they are."""
    while field is not None and not isinstance(field, Answer):
        field = field.parent
    return field is not None
