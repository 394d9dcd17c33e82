"""The form that a file's rows have in common: what a row alone leaves open, the others decide.

A question with its answer may stand as prompt and completion or as a chat, and a text that belongs
to a question before it or as the system message. Rows that train as they stand keep their form, and
a text has the same place in all rows of a file: a model learns how it is asked.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from workers.preparation.duplicates import COMMON_ROWS_MIN, COMMON_SHARE, hash_text
from workers.protocol.job_spec import DataFormat

BECAME_CHAT = "Question and answer became chat messages."
_PUT = "Key '{}' was put {} what is asked."
_HASH_BYTES = 8


@dataclass(frozen=True, slots=True)
class OpenPair:
    """What a prompt and its completion were, while the form of the row is open."""

    #: Of the texts of the prompt, in their order.
    keys: tuple[str, ...]
    #: As what training reads the row before it is mended; ``None`` where its keys are of no format.
    kind: DataFormat | None
    #: The first of several texts, where nobody said what it is.
    frame: str


class FileForm:
    """Counts the forms of a file's rows, and gives the others the form of most."""

    def __init__(self) -> None:
        self._pairs = self._named = self._others = 0
        self._systems: set[bytes] = set()
        self._frames: defaultdict[str, Counter[bytes]] = defaultdict(Counter)

    def note(self, value: Mapping[str, Any], kind: DataFormat, pair: OpenPair | None) -> None:
        """Count a row. All rows are counted before one is settled."""
        if pair is not None:
            self._pairs += 1
            self._named += pair.kind == DataFormat.COMPLETION
            self._others += pair.kind == DataFormat.INSTRUCTION
            if pair.frame:
                self._frames[pair.keys[0]][_hash(pair.frame)] += 1
            return
        # A completion without a prompt is no other form.
        self._others += kind is not DataFormat.COMPLETION
        if kind is DataFormat.CHAT:
            first = value["messages"][0]
            if first["role"] == "system" and isinstance(first["content"], str):
                self._systems.add(_hash(first["content"]))

    def settle(
        self, value: dict[str, Any], pair: OpenPair, reasons: Sequence[str]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Write a row as the others are written; the row, and what is noted of it."""
        # A chat says all that a pair says, and may say more: of different forms, all become chats.
        if not self._others and 2 * self._named > self._pairs:
            return value, tuple(reasons)
        if not pair.frame or _hash(pair.frame) not in self._system_texts:
            return write_chat(value), (*reasons, BECAME_CHAT)
        first, second, *_ = pair.keys
        joined = {_PUT.format(first, "before"), _PUT.format(second, "after")}
        kept = [reason for reason in reasons if reason not in joined]
        moved = f"Key '{first}' became the system message, which chats of the file have."
        return write_chat(value, pair.frame), (*kept, moved, BECAME_CHAT)

    @cached_property
    def _system_texts(self) -> set[bytes]:
        """System messages of chats, and what stands in their place in the same key as often."""
        found = set(self._systems)
        for texts in self._frames.values():
            least = max(COMMON_ROWS_MIN, COMMON_SHARE * texts.total())
            common = {text for text, rows in texts.items() if rows >= least}
            if common & self._systems:
                found |= common
        return found


def write_chat(value: Mapping[str, str], system: str = "") -> dict[str, Any]:
    """Write a prompt and its completion as a chat.

    Parameters
    ----------
    system
        The first text of the prompt, which becomes the system message.
    """
    asked = value["prompt"].removeprefix(f"{system}\n\n") if system else value["prompt"]
    turns = {"system": system, "user": asked, "assistant": value["completion"]}
    return {
        "messages": [
            {"role": role, "content": text.strip()} for role, text in turns.items() if text
        ]
    }


def _hash(text: str) -> bytes:
    return hash_text(text)[:_HASH_BYTES]
