"""The form that a file's rows have in common: what a row alone leaves open, the others decide.

A question with its answer may stand as prompt and completion or as a chat, and a text that belongs
to a question before it or as the system message. A model learns how it is asked, so rows that train
as they stand keep their form, unless so many rows of the file have another that it sets theirs.
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
_BECAME_PAIR = "Keys 'instruction' and 'output' became 'prompt' and 'completion'."
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
        self._rows = self._pairs = self._named = self._others = 0
        self._systems: Counter[bytes] = Counter()
        self._frames: defaultdict[str, Counter[bytes]] = defaultdict(Counter)

    def note(self, value: Mapping[str, Any], kind: DataFormat, pair: OpenPair | None) -> None:
        """Count a row. All rows are counted before one is settled."""
        self._rows += 1
        if pair is not None:
            self._pairs += 1
            self._named += pair.kind == DataFormat.COMPLETION
            self._others += pair.kind == DataFormat.INSTRUCTION
            if pair.frame:
                self._frames[pair.keys[0]][_hash(pair.frame)] += 1
            return
        # What is no pair and no chat, a pair cannot become.
        if kind is DataFormat.CHAT:
            self._others += 1
            first = value["messages"][0]
            if first["role"] == "system" and isinstance(first["content"], str):
                self._systems[_hash(first["content"])] += 1

    def settle(
        self, value: dict[str, Any], pair: OpenPair, reasons: Sequence[str]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Write a row as the others are written; the row, and what is noted of it."""
        # A chat says all that a pair says, and may say more: of different forms, all become chats.
        # A few chats are rather lost than let them change how all others are learnt.
        is_stray = self._others < COMMON_SHARE * self._rows
        if is_stray and 2 * self._named > self._pairs:
            renamed = (_BECAME_PAIR,) * (pair.kind == DataFormat.INSTRUCTION)
            return value, (*reasons, *renamed)
        systems = self._set_systems if pair.kind == DataFormat.INSTRUCTION else self._any_systems
        if not pair.frame or _hash(pair.frame) not in systems:
            return write_chat(value), (*reasons, BECAME_CHAT)
        first, second, *_ = pair.keys
        joined = {_PUT.format(first, "before"), _PUT.format(second, "after")}
        kept = [reason for reason in reasons if reason not in joined]
        moved = f"Key '{first}' became the system message, which chats of the file have."
        return write_chat(value, pair.frame), (*kept, moved, BECAME_CHAT)

    @cached_property
    def _any_systems(self) -> set[bytes]:
        return self._add_common(set(self._systems))

    @cached_property
    def _set_systems(self) -> set[bytes]:
        """Those of so many chats that rows which train as they stand follow them."""
        return self._add_common(_list_common(self._systems, self._rows))

    def _add_common(self, systems: set[bytes]) -> set[bytes]:
        """System messages, and what stands in their place in the same key as often."""
        found = set(systems)
        for texts in self._frames.values():
            common = _list_common(texts, texts.total())
            if common & systems:
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


def _list_common(texts: Counter[bytes], rows: int) -> set[bytes]:
    least = max(COMMON_ROWS_MIN, COMMON_SHARE * rows)
    return {text for text, found in texts.items() if found >= least}


def _hash(text: str) -> bytes:
    return hash_text(text)[:_HASH_BYTES]
