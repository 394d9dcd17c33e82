"""The shapes of ``/v1`` for its OpenAPI document."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework import serializers as s

from marketplace.api.answers import HAS_MORE, Answer, AsStored, ConstantText
from marketplace.api.text_patterns import ID


def list_of(item: type[Answer], name: str, *, has_ends: bool = False, is_paged: bool = True) -> Any:
    """Describe a list as OpenAI's clients read it."""
    members: dict[str, s.Field] = {
        "object": ConstantText("list"),
        "data": item(many=True, help_text="Items of this list or page."),
    }
    if is_paged:
        members["has_more"] = s.BooleanField(help_text=HAS_MORE)
    if has_ends:
        ends = {"first_id": "first", "last_id": "last"}
        for member, which in ends.items():
            words = f"Id of the {which} item; null: there is none."
            members[member] = s.CharField(allow_null=True, help_text=words)
    return type(f"{name}Serializer", (AsStored,), members)


def limit_to(most: int) -> OpenApiParameter:
    kind = {"type": "integer", "minimum": 1, "maximum": most}
    return OpenApiParameter("limit", kind, description="Items of the page.")


def page_after(pattern: str) -> list[OpenApiParameter]:
    """Describe the query of a list whose items have ids of a pattern."""
    kind, words = {"type": "string", "pattern": pattern}, "Id of the last item of the page before."
    return [OpenApiParameter("after", kind, description=words), limit_to(100)]


PAGE = page_after(ID)
FILES_PAGE = [
    PAGE[0],
    limit_to(10_000),
    OpenApiParameter(
        "purpose",
        {"type": "string", "enum": ["fine-tune", "fine-tune-results"]},
        description="fine-tune or fine-tune-results.",
    ),
    OpenApiParameter(
        "order", {"type": "string", "enum": ["asc", "desc"]}, description="asc or desc, by age."
    ),
]
JOBS_PAGE = [
    *PAGE,
    OpenApiParameter(
        "metadata", str, description="metadata[key]=value: with the pair; null: without any."
    ),
]


class ErrorSerializer(AsStored):
    message = s.CharField(help_text="What is wrong and what to do.")
    type = s.CharField(help_text="Kind of error, as OpenAI calls it.")
    param = s.CharField(
        allow_null=True, help_text="The member or parameter that is wrong; null: none."
    )
    code = s.CharField(help_text="What programs compare; never changes.")


class ErrorResponseSerializer(AsStored):
    error = ErrorSerializer(help_text="What went wrong.")


ERROR = OpenApiResponse(
    ErrorResponseSerializer,
    description="An error; members such as posted_price stand beside the four.",
)
ERRORS = {400: ERROR, 401: ERROR, 403: ERROR, 404: ERROR, 409: ERROR, 429: ERROR}
