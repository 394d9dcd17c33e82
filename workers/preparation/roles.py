"""What each column of a file is for: guessed from its name, or said by the owner."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from workers.preparation.changes import cut_excerpt
from workers.preparation.mended_json import Repair, RowDroppedError, fold_keys
from workers.preparation.reading import RawRow
from workers.preparation.tracing import read_object
from workers.protocol.job_spec import DataFormat
from workers.protocol.record_keys import OPTIONAL, REQUIRED, recognise
from workers.protocol.record_lines import hide_unprintable

#: Names that people give to a question and to its answer, in the order of precedence.
QUESTIONS = ("question", "query", "prompt", "instruction", "user", "human", "input", "request")
ANSWERS = (
    *("answer", "completion", "response", "output", "assistant", "reply", "gpt", "bot"),
    "target",
)
#: Names of what stands before a question, after it, and around the whole conversation.
CONTEXTS = ("context", "passage", "background", "document", "article", "paragraph", "title")
INPUTS = ("input", "inputs")
SYSTEMS = ("system", "system_prompt", "system_message")
HISTORIES = ("history", "chat_history")
TEXTS = ("text", "content", "body", "document", "passage", "sentence", "review")
LABELS = ("label", "class", "category", "sentiment", "intent")
LISTS = ("messages", "conversations", "conversation", "dialog", "dialogue", "turns", "chat")
#: Names of what describes a row and is no part of it, whatever it holds.
DETAILS = frozenset(
    {"id", "source", "url", "date", "author", "language", "lang", "license", "split", "tags"}
    | {"category", "topic", "model", "score", "rating", "created_at", "updated_at", "timestamp"}
)
#: What a key holds that holds nothing.
EMPTY: tuple[Any, ...] = (None, "", [], {})
#: Columns that a plan lists.
COLUMNS_LISTED = 64


class ColumnRole(StrEnum):
    """What a column is to a row; each but the last is also the name that its text then has."""

    PROMPT = "prompt"
    COMPLETION = "completion"
    SYSTEM = "system"
    CONTEXT = "context"
    INPUT = "input"
    HISTORY = "history"
    MESSAGES = "messages"
    TEXT = "text"
    LABEL = "label"
    LEFT_OUT = "left_out"


KNOWN_ROLES = frozenset(role.value for role in ColumnRole)
#: Beside those that have roles, the keys that training reads, by format.
_READ_BY_NAME: dict[DataFormat | None, frozenset[str]] = {
    DataFormat.CHAT: OPTIONAL[DataFormat.CHAT],
    DataFormat.PREFERENCE: OPTIONAL[DataFormat.PREFERENCE].union(
        *(required for kind, required in REQUIRED if kind is DataFormat.PREFERENCE)
    ),
}
#: Roles that several columns may have: their texts are joined in the order of the columns.
_JOINED = frozenset({ColumnRole.SYSTEM, ColumnRole.CONTEXT, ColumnRole.INPUT})


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A column of the file, and what it is taken for."""

    name: str
    #: Rows that have it.
    rows: int
    #: An excerpt of the first text in it.
    example: str
    #: A ``ColumnRole``; empty where its name says nothing.
    role: str


class ColumnCounts:
    """Counts the columns of a file's rows."""

    def __init__(self) -> None:
        self._rows: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        #: As the repair reads them in the first row that it can read one in.
        self._roles: dict[str, str] = {}

    def note(self, raw: RawRow) -> None:
        """Count the columns of a row that can be read as it is."""
        row = {key.strip().casefold(): item for key, item in (read_object(raw) or {}).items()}
        guessed = _guess_once(tuple(row))
        for key, item in row.items():
            if key not in guessed:
                continue
            name = hide_unprintable(key[:64])
            if name not in self._rows and len(self._rows) >= COLUMNS_LISTED:
                continue
            self._rows[name] += 1
            self._roles[name] = self._roles.get(name, "") or guessed[key]
            if item not in EMPTY and name not in self._examples:
                text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
                self._examples[name] = text

    def list_columns(
        self, roles: Mapping[str, str], *, hide: Callable[[str], str]
    ) -> tuple[PlannedColumn, ...]:
        """The columns, the most frequent first, with the roles that were said or are guessed."""
        return tuple(
            PlannedColumn(
                name,
                rows,
                cut_excerpt(hide(self._examples.get(name, ""))),
                roles.get(name, "") or self._roles[name],
            )
            for name, rows in sorted(self._rows.items(), key=lambda each: (-each[1], each[0]))
        )


def guess_roles(names: Iterable[str]) -> dict[str, str]:
    """The roles that ``repair_row`` gives to columns of these names; empty for what it refuses."""
    found = dict.fromkeys(names, "")

    def take(among: Iterable[str], role: ColumnRole, *, most: int = 1) -> None:
        free = [name for name in among if found.get(name) == ""]
        found.update((name, role.value) for name in free[:most])

    take(LISTS, ColumnRole.MESSAGES)
    if {"chosen", "rejected"} <= found.keys():
        take(("prompt", *QUESTIONS), ColumnRole.PROMPT)
        take(("context",), ColumnRole.CONTEXT)
        take(INPUTS, ColumnRole.INPUT)
        take(SYSTEMS, ColumnRole.SYSTEM, most=len(SYSTEMS))
        take(DETAILS, ColumnRole.LEFT_OUT, most=len(DETAILS))
        return found
    if ColumnRole.MESSAGES not in found.values():
        take(QUESTIONS, ColumnRole.PROMPT)
        take(ANSWERS, ColumnRole.COMPLETION)
    has_pair = {ColumnRole.PROMPT, ColumnRole.COMPLETION} <= set(found.values())
    if has_pair:
        take(CONTEXTS, ColumnRole.CONTEXT, most=len(CONTEXTS))
        take(INPUTS, ColumnRole.INPUT, most=len(INPUTS))
        take(HISTORIES, ColumnRole.HISTORY)
    elif ColumnRole.MESSAGES not in found.values():
        found.update(dict.fromkeys(found, ""))
        take(TEXTS, ColumnRole.TEXT)
        take(LABELS, ColumnRole.LABEL)
    take(SYSTEMS, ColumnRole.SYSTEM)
    take(DETAILS, ColumnRole.LEFT_OUT, most=len(DETAILS))
    return found


@lru_cache(maxsize=1024)
def _guess_once(names: tuple[str, ...]) -> dict[str, str]:
    kind = recognise(frozenset(names))
    # Keys that training reads by their names have no role, and nothing is asked about them.
    read = _READ_BY_NAME.get(kind, frozenset())
    return {name: role for name, role in guess_roles(names).items() if role or name not in read}


def assign_roles(
    value: Mapping[str, Any], roles: Mapping[str, str], repair: Repair
) -> dict[str, Any]:
    """The row with each column under the name of the role that its owner gave it.

    Raises
    ------
    RowDroppedError
        A column without a role has the name of a role that another one has.
    """
    found: dict[str, Any] = {}
    taken: dict[str, str] = {}
    plain = fold_keys(value)
    for name, role in roles.items():
        if name not in plain:
            continue
        item = plain.pop(name)
        if role == ColumnRole.LEFT_OUT:
            repair.note(f"Key '{name}' was left out, as its owner said.")
            continue
        if isinstance(item, int | float) and not isinstance(item, bool):
            item = str(item)
            repair.note("Numbers were written as text.")
        if role in taken and item not in EMPTY and found[role] not in EMPTY:
            earlier = found[role]
            if role not in _JOINED or not (isinstance(earlier, str) and isinstance(item, str)):
                raise RowDroppedError(
                    f"Keys '{taken[role]}' and '{name}' are both taken as {role}."
                )
            item = f"{earlier}\n\n{item}"
        if role not in taken or item not in EMPTY:
            found[role] = item
        if name != role:
            repair.note(f"Key '{name}' was taken as {role}.")
        taken[role] = name
        repair.said.add(role)
    for name, item in plain.items():
        if name in taken and item not in EMPTY:
            raise RowDroppedError(
                f"Key '{name}' stands beside '{taken[name]}', which is taken as {name}. Say what "
                "it is."
            )
        found.setdefault(name, item)
    return found
