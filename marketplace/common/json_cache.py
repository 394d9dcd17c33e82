"""Cache values as JSON: what another process wrote to Redis is read as data, never run."""

from __future__ import annotations

import json
from typing import Any


class JsonSerializer:
    """Django's interface for the Redis cache; integers stay bare so that they can be counted up."""

    def dumps(self, value: Any) -> int | bytes:
        # Django's own serializer leaves exactly these bare: ``bool`` is a subclass of ``int``.
        if type(value) is int:
            return value
        return json.dumps(value, separators=(",", ":")).encode()

    def loads(self, stored: bytes) -> Any:
        return json.loads(stored)
