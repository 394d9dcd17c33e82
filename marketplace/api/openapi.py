"""What drf-spectacular cannot see for itself."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.http import HttpResponse
from django.urls import URLResolver, get_resolver
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from marketplace.api.views import MarketView

#: The documents by the addresses that they describe, and the files in ``docs/api``.
SURFACES = {"api/": "market.json", "v1/": "openai.json"}


class ApiKeyScheme(OpenApiAuthenticationExtension):
    """``Authorization: Bearer ft_…`` in the OpenAPI document."""

    target_class = "marketplace.api.callers.ApiKeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "ft_<prefix>_<secret>"}


class SchemaView(MarketView):
    """The OpenAPI document, made once in each process: no setting and no caller changes it."""

    authentication_classes = []

    #: The addresses it describes.
    surface = "api/"

    @extend_schema(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        content = render_schema(self.surface)
        return HttpResponse(content, content_type=OpenApiJsonRenderer.media_type)


class OpenAiSchemaView(SchemaView):
    """The same of what OpenAI's clients call."""

    surface = "v1/"


@cache
def render_schema(surface: str) -> bytes:
    """The OpenAPI document of the addresses below ``api/`` or ``v1/``, as JSON."""
    patterns = [
        of
        for of in get_resolver().url_patterns
        if isinstance(of, URLResolver) and str(of.pattern) == surface
    ]
    document = SchemaGenerator(patterns=patterns).get_schema(request=None, public=True)
    return OpenApiJsonRenderer().render(document, renderer_context={})
