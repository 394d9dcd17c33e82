"""What a preparation did to a data set, line by line."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TextIO

from workers.protocol.record_lines import hide_unprintable

_EXCERPT_CHARS = 200


class Step(StrEnum):
    READING = "reading"
    REPAIR = "repair"
    FILTERS = "filters"
    DUPLICATES = "duplicates"
    PERSONAL_DATA = "personal_data"


class Action(StrEnum):
    CHANGED = "changed"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one row, with its reason."""

    #: Line of the original file on which the row starts, from 1.
    line: int
    step: Step
    action: Action
    #: Sentences for the owner.
    reasons: tuple[str, ...]
    #: Excerpts, safe to show; ``after`` is empty for a dropped row.
    before: str = ""
    after: str = ""


def cut_excerpt(text: str) -> str:
    """The beginning of a text without control characters, of at most 200 characters."""
    piece = hide_unprintable(text[:_EXCERPT_CHARS])
    return piece + "…" if len(text) > _EXCERPT_CHARS else piece


#: What a kind of reason says where little is left of it without what differs from row to row.
_KINDS = (
    (re.compile(r"Key … of a message became ….*"), "A message's key got the name it trains by."),
    (re.compile(r"Keys? … .*became ….*"), "A row's keys got the names it trains by."),
    (re.compile(r"Role … became ….*"), "A message's role got the name it trains by."),
    (re.compile(r"Personal data were replaced: .*"), "Personal data were replaced."),
    (re.compile(r"(The row has .*text as) line …\."), r"\1 an earlier one."),
)


def name_kind(reason: str) -> str:
    """A reason without the numbers and quoted words that differ from row to row."""
    kind = re.sub(r"\d(?:[\d,.]*\d)?|'[^']*'", "…", reason)
    for pattern, words in _KINDS:
        kind = pattern.sub(words, kind)
    return kind


#: The kind of reason of a row that repeats another to the letter.
EXACT_DUPLICATE = name_kind("The row has the same text as line 1.")


class ChangeLog:
    """Writes changes as JSON lines and counts them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._counts: Counter[tuple[Step, Action]] = Counter()
        self._reasons: Counter[tuple[Step, str]] = Counter()

    def add(self, change: Change) -> None:
        self._counts[change.step, change.action] += 1
        self._reasons.update((change.step, name_kind(reason)) for reason in change.reasons)
        fields = {name: getattr(change, name) for name in Change.__slots__}
        self._stream.write(json.dumps(fields, ensure_ascii=False) + "\n")

    def count(self, step: Step, action: Action) -> int:
        return self._counts[step, action]

    def reasons(self, step: Step) -> dict[str, int]:
        """Kinds of reasons of one step and how many changes have them, most frequent first."""
        found = [(kind, n) for (own, kind), n in self._reasons.items() if own is step]
        return dict(sorted(found, key=lambda item: (-item[1], item[0])))
