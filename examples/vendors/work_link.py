"""What adapters of outside vendors share: rows by a link, people's answers, a signed delivery.

Standard library only. A vendor gets two addresses with each work, in the message
``work.assigned`` or from its console: one gives the rows, the other takes them back.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
#: Where the answer of a row stands that is no chat, and what is asked there.
ANSWERS = ("completion", "output", "response", "answer")
QUESTIONS = ("prompt", "instruction", "question", "input", "context", "raw")
TIMEOUT_S = 60


@dataclass(frozen=True)
class Item:
    """A row as people see it."""

    row_id: int
    asked: str
    told: str


@dataclass(frozen=True)
class Answer:
    """What one person said of a row; ``None``: it is to be left out."""

    told: str | None


def fetch_rows(data_url: str) -> list[Row]:
    """The rows behind a link, each with its ``row_id``."""
    with urllib.request.urlopen(data_url, timeout=TIMEOUT_S) as answer:  # noqa: S310
        return [json.loads(line) for line in answer.read().splitlines()]


def read_item(row: Row) -> Item:
    """What is asked in a row and what is answered, as texts."""
    if "messages" in row:
        *earlier, last = row["messages"]
        if last["role"] != "assistant":
            earlier, last = row["messages"], {"content": ""}
        asked = "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in earlier)
        return Item(row["row_id"], asked, last["content"] or "")
    told = next((row[key] for key in ANSWERS if row.get(key)), "")
    asked = "\n\n".join(str(row[key]) for key in QUESTIONS if row.get(key))
    return Item(row["row_id"], asked, str(told))


def write_row(row: Row, told: str) -> Row:
    """The row with another answer; all else stays as it was."""
    if "messages" in row:
        turns = list(row["messages"])
        if turns[-1]["role"] == "assistant":
            turns.pop()
        return row | {"messages": [*turns, {"role": "assistant", "content": told}]}
    key = next((key for key in ANSWERS if key in row), None)
    if key is not None:
        return row | {key: told}
    said = [{"role": "user", "content": read_item(row).asked}]
    said.append({"role": "assistant", "content": told})
    return {"row_id": row["row_id"], "messages": said}


def choose_answer(answers: Sequence[Answer]) -> Answer:
    """What most people said; of equally many, the first."""
    return Counter(answers).most_common(1)[0][0]


def measure_agreement(answers: Iterable[Sequence[Answer]]) -> float | None:
    """Of the rows that several people answered, the share on which all said the same."""
    several = [said for said in answers if len(said) > 1]
    return sum(len(set(said)) == 1 for said in several) / len(several) if several else None


def iter_delivered(rows: Iterable[Row], answers: Mapping[int, Sequence[Answer]]) -> Iterator[Row]:
    """The rows to deliver, in their order.

    Raises
    ------
    LookupError
        Nobody has answered a row yet.
    """
    for row in rows:
        said = answers.get(row["row_id"])
        if not said:
            raise LookupError(f"Nobody has answered row {row['row_id']} yet.")
        told = choose_answer(said).told
        if told is not None:
            yield write_row(row, told)


def deliver(delivery_url: str, rows: Iterable[Row], *, secret: str) -> dict[str, Any]:
    """Send the prepared rows, signed as in Standard Webhooks; what the market says of them."""
    body = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
    with urllib.request.urlopen(delivery_url, timeout=TIMEOUT_S) as answer:  # noqa: S310
        preparation_id = json.load(answer)["preparation_id"]
    headers = sign(body, message_id=preparation_id, secret=secret, now=int(time.time()))
    request = urllib.request.Request(delivery_url, body, headers, method="PUT")  # noqa: S310
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
        return json.load(answer)


def sign(body: bytes, *, message_id: str, secret: str, now: int) -> dict[str, str]:
    """The headers of a signed message."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = hmac.new(key, f"{message_id}.{now}.".encode() + body, hashlib.sha256).digest()
    return {
        "content-type": "application/jsonl",
        "webhook-id": message_id,
        "webhook-timestamp": str(now),
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }
