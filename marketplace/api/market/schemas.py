"""Parameters and problems, which many operations of the market's API share."""

from __future__ import annotations

from collections.abc import Sequence

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework import serializers as s

from marketplace.api.answers import AsStored
from marketplace.api.pagination import LIMIT_DEFAULT, LIMIT_MAX
from marketplace.api.text_patterns import ID, NO_NUL

_LIMIT = {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT}
_ORDER = {"type": "string", "enum": ["desc", "asc"], "default": "desc"}
_MOMENT = {"type": "string", "format": "date-time"}
#: Of lists that are numbered.
CURSOR = {"type": "integer", "minimum": 0, "maximum": 2**53 - 1}
_ID = {"type": "string", "pattern": ID}
_TEXT = {"type": "string", "pattern": NO_NUL}
PAGE = [
    OpenApiParameter("limit", _LIMIT, description="Items of the page."),
    OpenApiParameter("after", _ID, description="Id of the last item of the page before."),
    OpenApiParameter("order", _ORDER, description="desc: the newest first; asc: the oldest."),
]
NAMED_PAGE = [
    *PAGE,
    OpenApiParameter("name", _TEXT, description="Only items of this name."),
    OpenApiParameter("created_after", _MOMENT, description="Only items made then or later."),
    OpenApiParameter("created_before", _MOMENT, description="Only items made before then."),
]
NODES_PAGE = [
    *PAGE,
    OpenApiParameter("name", _TEXT, description="Only the node of this name."),
    OpenApiParameter("zone", _TEXT, description="Only nodes of this zone, by its name."),
]
EVENTS_PAGE = [
    OpenApiParameter("limit", _LIMIT, description="Events of the page."),
    OpenApiParameter("after", CURSOR, description="seq of the last event seen."),
]


def build_work_page(statuses: Sequence[str]) -> list[OpenApiParameter]:
    """Describe the query of a list of work that has one of these statuses."""
    status = {"type": "string", "enum": list(statuses)}
    return [
        *NAMED_PAGE,
        OpenApiParameter("status", status, description="Only items of this status."),
        OpenApiParameter("zone", _TEXT, description="Only items of this zone, by its name."),
    ]


class ProblemSerializer(AsStored):
    type = s.CharField(help_text="A URN of the code.")
    title = s.CharField(help_text="The HTTP status in words.")
    status = s.IntegerField(help_text="The HTTP status.")
    code = s.CharField(help_text="What programs compare; never changes.")
    detail = s.CharField(help_text="What is wrong and what to do.")
    param = s.CharField(required=False, help_text="The member or parameter that is wrong.")
    request_id = s.CharField(
        help_text="Tell it to support; the answer's header X-Request-Id has it too."
    )


PROBLEM = OpenApiResponse(ProblemSerializer, description="RFC 9457 application/problem+json.")
FILE = OpenApiResponse(OpenApiTypes.BINARY)


def build_file_types(media_type: str) -> tuple[str, str]:
    """The media types of a file; clients that are generated read bytes of the first only."""
    return "application/octet-stream", media_type
