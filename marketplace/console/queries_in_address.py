"""What lists read from the part of their address after the question mark."""

from __future__ import annotations

import re

from django.http import HttpRequest

_CHARS = 80


def read_text(request: HttpRequest, name: str) -> str:
    """A short text; empty where none was given."""
    return request.GET.get(name, "").replace("\0", "").strip()[:_CHARS]


def read_cursor(request: HttpRequest, name: str) -> int | None:
    """The number after which a page of a list begins; ``None``: from its beginning."""
    text = request.GET.get(name, "")
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None
