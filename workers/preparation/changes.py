"""What a preparation did to a data set, line by line."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TextIO

from workers.protocol.record_json import show_name
from workers.protocol.record_lines import hide_unprintable

_EXCERPT_CHARS = 200
_REASON_CHARS = 300


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


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """One row of a kind of change; ``after`` is empty for a row that is left out."""

    line: int
    before: str
    after: str


#: Rows shown of each kind of change, and kinds shown of each step.
EXAMPLES_SHOWN = 10
KINDS_SHOWN = 20
#: Keys and roles whose fate is told one by one.
KEYS_COUNTED = 200
_KEY = re.compile(r"(?:Keys?|Role) '[^']*'(?: and '[^']*')?[^.]*\.?")


def cut_excerpt(text: str) -> str:
    """The beginning of a text without control characters, of at most 200 characters."""
    piece = hide_unprintable(text[:_EXCERPT_CHARS])
    return piece + "…" if len(text) > _EXCERPT_CHARS else piece


#: What a kind of reason says where little is left of it without what differs from row to row.
_KINDS = (
    (re.compile(r"Key … of a message became ….*"), "A message's key got the name it trains by."),
    (re.compile(r"Key … was taken as .*"), "A row's keys got the roles that its owner gave them."),
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


#: The kind of reason of a row that repeats another but for case and spaces.
EXACT_DUPLICATE = name_kind("The row has the same text as line 1.")


class ChangeLog:
    """Writes changes as JSON lines and counts them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._counts: Counter[tuple[Step, Action]] = Counter()
        self._reasons: Counter[tuple[Step, str]] = Counter()
        self._keys: Counter[str] = Counter()
        self._examples: dict[Step, dict[str, list[ChangedRow]]] = {}

    def add(self, change: Change) -> None:
        # They quote the file's keys.
        reasons = tuple(hide_unprintable(reason[:_REASON_CHARS]) for reason in change.reasons)
        change = replace(change, reasons=reasons)
        self._counts[change.step, change.action] += 1
        kinds = dict.fromkeys(map(name_kind, change.reasons))
        self._reasons.update((change.step, kind) for kind in kinds)
        self._add_examples(change, kinds)
        self._count_keys(change.reasons)
        fields = {name: getattr(change, name) for name in Change.__slots__}
        self._stream.write(json.dumps(fields, ensure_ascii=False) + "\n")

    def note_unread(self, keys: Iterable[str]) -> None:
        """Count keys that stay in a row and are not trained on."""
        self._count_keys(f"Key '{show_name(key)}' is not trained on." for key in keys)

    def count(self, step: Step, action: Action) -> int:
        return self._counts[step, action]

    def reasons(self, step: Step) -> dict[str, int]:
        """Kinds of reasons of one step and how many changes have them, most frequent first."""
        found = [(kind, n) for (own, kind), n in self._reasons.items() if own is step]
        return dict(sorted(found, key=lambda item: (-item[1], item[0])))

    def list_keys(self) -> dict[str, int]:
        """What became of each key, and in how many rows, most frequent first."""
        return dict(sorted(self._keys.items(), key=lambda item: (-item[1], item[0])))

    def list_examples(self) -> dict[str, dict[str, list[ChangedRow]]]:
        """The first rows of each kind of change, by step."""
        return {step.value: self._examples[step] for step in Step if step in self._examples}

    def _add_examples(self, change: Change, kinds: Iterable[str]) -> None:
        shown = self._examples.setdefault(change.step, {})
        for kind in kinds:
            if kind in shown or len(shown) < KINDS_SHOWN:
                rows = shown.setdefault(kind, [])
                if len(rows) < EXAMPLES_SHOWN:
                    rows.append(ChangedRow(change.line, change.before, change.after))

    def _count_keys(self, reasons: Iterable[str]) -> None:
        for reason in reasons:
            found = _KEY.match(reason)
            if found and (found[0] in self._keys or len(self._keys) < KEYS_COUNTED):
                self._keys[found[0]] += 1
