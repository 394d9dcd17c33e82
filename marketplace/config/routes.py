"""Every route of the site and who may use it, read from the views themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver

from marketplace.accounts.models import Role
from marketplace.accounts.policy import RIGHT_BY_SCOPE, ROLES_BY_RIGHT, Right
from marketplace.live.routing import websocket_urlpatterns

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
#: Routes whose views name no audience themselves, by the start of their path; the first that fits.
AUDIENCE_BY_PREFIX = {
    "admin/": "operator",
    "accounts/": "sign-in",
    "internal/v1/join": "join token",
    "internal/v1/release": "public",
    "internal/v1/": "node",
    "links/": "link",
    "api/vendor-work/": "link",
    "webhooks/stripe": "signature",
    "live/jobs/": "look",
    "live/market/": "public",
    "market/<slug:zone_name>/transcript": "public",
    "install/": "public",
    "healthz": "public",
    "metrics": "metrics token",
    "api/zones": "public",
    "api/market/": "public",
    "api/schema": "public",
    "v1/schema": "public",
}


@dataclass(frozen=True, slots=True, order=True)
class Route:
    """One method of one address."""

    path: str
    method: str
    #: Who may change something there: a right (``look``, ``work``, ``pay``, ``own``), or who else
    #: (``public``, ``person``, ``operator``, ``node``, ``link`` ...); empty where nothing says.
    audience: str
    #: What a key needs; empty on pages.
    scope: str = ""


def list_routes() -> list[Route]:
    """List every method of every address that the site's resolver knows."""
    return sorted(_walk(get_resolver(), ""))


def list_sockets() -> list[Route]:
    """List the addresses of websockets."""
    consumers = (
        (pattern, getattr(pattern.callback, "consumer_class", None))
        for pattern in websocket_urlpatterns
    )
    return [
        Route(str(pattern.pattern).strip("^$"), "socket", of.audience, of.scope_of_key)
        for pattern, of in consumers
        if of is not None
    ]


def _walk(resolver: URLResolver, prefix: str) -> Iterator[Route]:
    patterns: list[Any] = list(resolver.url_patterns)
    for pattern in patterns:
        path = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _walk(pattern, path)
        else:
            yield from _describe(pattern, path)


def _describe(pattern: URLPattern, path: str) -> Iterator[Route]:
    view: Any = pattern.callback
    fitting = (who for start, who in AUDIENCE_BY_PREFIX.items() if path.startswith(start))
    audience = str(getattr(view, "audience", next(fitting, "")))
    of_class = getattr(view, "cls", None)
    if of_class is None:
        yield Route(path, "*", audience)
        return
    scopes = getattr(of_class, "scopes", {})
    for method in METHODS:
        if hasattr(of_class, method.lower()):
            scope = scopes.get(method, "")
            yield Route(path, method, RIGHT_BY_SCOPE[scope] if scope else audience, scope)


def write_route_table() -> str:
    """Write the routes as a Markdown table, with the roles that each right belongs to."""
    lines = ["| Address | Method | For | Roles | Scope of a key |", "|--|--|--|--|--|"]
    for route in [*list_routes(), *list_sockets()]:
        if route.path.startswith(("admin/", "accounts/")):
            continue
        method = "any" if route.method == "*" else route.method
        roles = "".join(
            ", ".join(role.value for role in Role if role in ROLES_BY_RIGHT[right])
            for right in Right
            if right == route.audience
        )
        address = route.path.replace("|", "\\|")
        lines.append(f"| `/{address}` | {method} | {route.audience} | {roles} | {route.scope} |")
    return "\n".join(lines) + "\n"
