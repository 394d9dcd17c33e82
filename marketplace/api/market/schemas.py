"""Parameters and problems, which many operations of the market's API share."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework import serializers as s

from marketplace.api.answers import AsStored

PAGE = [
    OpenApiParameter("limit", int, description="Items of the page, 1 to 100; 20 without it."),
    OpenApiParameter("after", str, description="Id of the last item of the page before."),
    OpenApiParameter("status", str, description="Only items of this status."),
]
EVENTS_PAGE = [
    OpenApiParameter("limit", int, description="Events of the page, 1 to 100; 20 without it."),
    OpenApiParameter("after", int, description="seq of the last event seen."),
]


class ProblemSerializer(AsStored):
    type = s.CharField()
    title = s.CharField()
    status = s.IntegerField()
    code = s.CharField(help_text="What programs compare; never changes.")
    detail = s.CharField(help_text="What is wrong and what to do.")
    param = s.CharField(required=False)
    request_id = s.CharField()


PROBLEM = OpenApiResponse(ProblemSerializer, description="RFC 9457 application/problem+json.")
