"""What tests read of a page."""

from __future__ import annotations

import re
from decimal import Decimal
from html import unescape
from typing import Any

from asgiref.sync import async_to_sync


def read_page(reply: Any) -> str:
    """The page's source with every run of whitespace as one space, as a browser shows text."""
    return re.sub(r"\s+", " ", reply.content.decode())


def read_text(reply: Any) -> str:
    """The words of the page, without its markup and with one space between them."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", reply.content.decode())).split())


def read_amounts(reply: Any) -> list[list[Decimal]]:
    """The dollars of each row of a page's tables, in order."""
    rows = re.findall(r"<tr>(.*?)</tr>", reply.content.decode(), flags=re.DOTALL)
    return [amounts for row in rows if (amounts := _find_dollars(row))]


def read_lists(reply: Any) -> list[list[Decimal]]:
    """The dollars of each list of lines of a page, in order."""
    lists = re.findall(r'<dl class="lines.*?</dl>', reply.content.decode(), flags=re.DOTALL)
    return [
        _find_dollars(" ".join(re.findall(r"<dd.*?</dd>", each, flags=re.DOTALL))) for each in lists
    ]


def _find_dollars(source: str) -> list[Decimal]:
    text = unescape(re.sub(r"<[^>]*>", "", source)).replace(",", "")
    found = re.findall(r"([-\N{MINUS SIGN}]?)\$([0-9.]+)", text)
    return [Decimal(f"{'-' if sign else ''}{number}") for sign, number in found]


def read_download(reply: Any) -> bytes:
    """The whole of an answer that must leave a chunk at a time.

    Django reads a stream that is not asynchronous to its end before it sends the first byte.
    """
    assert reply.is_async

    async def read() -> bytes:
        return b"".join([chunk async for chunk in reply.streaming_content])

    return async_to_sync(read)()
