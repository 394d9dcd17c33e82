"""What drf-spectacular cannot see for itself."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.http import HttpResponse
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from marketplace.api.views import MarketView


class ApiKeyScheme(OpenApiAuthenticationExtension):
    """``Authorization: Bearer ft_…`` in the OpenAPI document."""

    target_class = "marketplace.api.callers.ApiKeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "ft_<prefix>_<secret>"}


class SchemaView(MarketView):
    """The OpenAPI document, made once in each process: no setting and no caller changes it."""

    authentication_classes = []

    @extend_schema(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        return HttpResponse(_render_schema(), content_type=OpenApiJsonRenderer.media_type)


@cache
def _render_schema() -> bytes:
    document = SchemaGenerator().get_schema(request=None, public=True)
    return OpenApiJsonRenderer().render(document, renderer_context={})
