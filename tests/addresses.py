"""Every address that a program or a browser can open, as the market itself lists them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

from django.urls import get_resolver

from marketplace.api.openapi import SURFACES, render_schema

METHODS = ("get", "post", "put", "patch", "delete")


def list_operations() -> Iterator[tuple[str, str]]:
    """Method and address of each operation in the OpenAPI documents."""
    for surface in SURFACES:
        for path, item in json.loads(render_schema(surface))["paths"].items():
            for method in METHODS:
                if method in item:
                    yield method, path


def list_page_addresses() -> list[str]:
    """Every address of the pages, with ``{job_id}`` and the like for what it names."""
    found: list[str] = []
    for pattern in get_resolver().url_patterns:
        module = str(getattr(pattern, "urlconf_name", ""))
        if not any(part in module for part in ("web.urls", "console.urls", "live.urls")):
            continue
        for one in pattern.url_patterns:  # type: ignore[union-attr]
            route = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", str(one.pattern))
            found.append("/" + route)
    return [*found, "/accounts/login/", "/accounts/signup/", "/admin/login/"]


def fill(address: str, names: Callable[[str], str]) -> str:
    """The address with what ``names`` says in the place of each name."""
    return re.sub(r"{(\w+)}", lambda found: names(found[1]), address)
