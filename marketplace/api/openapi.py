"""What drf-spectacular cannot see for itself."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension


class ApiKeyScheme(OpenApiAuthenticationExtension):
    """``Authorization: Bearer ft_…`` in the OpenAPI document."""

    target_class = "marketplace.api.callers.ApiKeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "ft_<prefix>_<secret>"}
