"""Stripe's form bodies: ``metadata[a]=1&expand[0]=x``."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl

_WORDS = {"true": True, "false": False}


def parse_form(text: str) -> dict[str, Any]:
    """Nested values of a form; lists are in the order of their numbers."""
    asked: dict[str, Any] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        first, *parts = re.findall(r"[^\[\]]+", name)
        at: Any = asked
        key = first
        for part in parts:
            at = at.setdefault(key, {})
            key = part
        at[key] = _WORDS.get(value, value)
    return {name: _settle(value) for name, value in asked.items()}


def _settle(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value and all(key.isdigit() for key in value):
        return [_settle(value[key]) for key in sorted(value, key=int)]
    return {key: _settle(part) for key, part in value.items()}
