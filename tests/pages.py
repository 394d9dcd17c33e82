"""What tests read of a page."""

from __future__ import annotations

import re
from typing import Any


def read_page(reply: Any) -> str:
    """The page's source with every run of whitespace as one space, as a browser shows text."""
    return re.sub(r"\s+", " ", reply.content.decode())
