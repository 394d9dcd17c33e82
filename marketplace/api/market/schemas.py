"""What the schemas of the market's API share: parts of its OpenAPI document."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, inline_serializer
from rest_framework import serializers as s

Fields = dict[str, Any]


def shape(name: str, fields: Fields, *, many: bool = False, **options: Any) -> Any:
    return inline_serializer(name=name, fields=fields, many=many, **options)


def list_of(item: Any, **options: Any) -> s.ListField:
    # A copy: a shape that stands in several lists would be bound to the first.
    return s.ListField(child=deepcopy(item), **options)


def page_of(name: str, item: Any, **more: s.Field) -> Any:
    return shape(name, {"data": list_of(item), "has_more": s.BooleanField(), **more})


def usd_field(**options: Any) -> s.CharField:
    return s.CharField(help_text="Dollars as a decimal string.", **options)


PAGE = [
    OpenApiParameter("limit", int, description="Items of the page, 1 to 100; 20 without it."),
    OpenApiParameter("after", str, description="Id of the last item of the page before."),
    OpenApiParameter("status", str, description="Only items of this status."),
]
EVENTS_PAGE = [
    OpenApiParameter("limit", int, description="Events of the page, 1 to 100; 20 without it."),
    OpenApiParameter("after", int, description="seq of the last event seen."),
]
PROBLEM_FIELDS: Fields = {
    "type": s.CharField(),
    "title": s.CharField(),
    "status": s.IntegerField(),
    "code": s.CharField(help_text="What programs compare; never changes."),
    "detail": s.CharField(help_text="What is wrong and what to do."),
    "param": s.CharField(required=False),
    "request_id": s.CharField(),
}
PROBLEM = OpenApiResponse(
    shape("Problem", PROBLEM_FIELDS), description="RFC 9457 application/problem+json."
)
