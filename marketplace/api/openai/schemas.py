"""The shapes of ``/v1`` for its OpenAPI document."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework import serializers as s

from marketplace.api.answers import Answer, AsStored, ConstantText


def always(text: str) -> ConstantText:
    return ConstantText(text, help_text=f"Always {text}.")


def list_of(item: type[Answer], name: str, *, has_ends: bool = False, is_paged: bool = True) -> Any:
    """Describe a list as OpenAI's clients read it."""
    members: dict[str, s.Field] = {"object": always("list"), "data": item(many=True)}
    if is_paged:
        members["has_more"] = s.BooleanField()
    if has_ends:
        members["first_id"] = s.CharField(allow_null=True)
        members["last_id"] = s.CharField(allow_null=True)
    return type(f"{name}Serializer", (AsStored,), members)


AFTER = OpenApiParameter("after", str, description="Id of the last item of the page before.")


def limit_to(most: int) -> OpenApiParameter:
    kind = {"type": "integer", "minimum": 1, "maximum": most}
    return OpenApiParameter("limit", kind, description="Items of the page.")


PAGE = [AFTER, limit_to(100)]
FILES_PAGE = [
    AFTER,
    limit_to(10_000),
    OpenApiParameter("purpose", str, description="fine-tune or fine-tune-results."),
    OpenApiParameter("order", str, description="asc or desc, by age."),
]
JOBS_PAGE = [
    *PAGE,
    OpenApiParameter(
        "metadata", str, description="metadata[key]=value: with the pair; null: without any."
    ),
]


class ErrorSerializer(AsStored):
    message = s.CharField(help_text="What is wrong and what to do.")
    type = s.CharField()
    param = s.CharField(allow_null=True)
    code = s.CharField(help_text="What programs compare; never changes.")


class ErrorResponseSerializer(AsStored):
    error = ErrorSerializer()


ERROR = OpenApiResponse(
    ErrorResponseSerializer,
    description="An error; members such as posted_price stand beside the four.",
)
ERRORS = {400: ERROR, 401: ERROR, 403: ERROR, 404: ERROR, 409: ERROR, 429: ERROR}
