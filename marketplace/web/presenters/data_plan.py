"""A plan of a preparation as its page shows it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from marketplace.jobs.importing import ROLES
from marketplace.vendors.models import DataPlan
from marketplace.vendors.plans import count_lost, is_much

_STEPS = {
    "reading": "Read",
    "repair": "Repair and rewrite",
    "filters": "Leave out repetitive rows",
    "duplicates": "Leave out repetitions of rows",
    "personal_data": "Replace personal data",
}
_ROLE_WORDS = {
    "prompt": "what is asked",
    "completion": "the answer",
    "system": "system prompt",
    "context": "stands before what is asked",
    "input": "stands after what is asked",
    "history": "earlier turns",
    "messages": "the whole chat",
    "text": "the text",
    "label": "its label",
    "left_out": "left out",
}
_WORD = re.compile(r"\s+|\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a text; ``is_other``: the other side does not have it."""

    text: str
    is_other: bool


@dataclass(frozen=True, slots=True)
class ShownChange:
    """One row, side by side."""

    line: int
    before: tuple[Piece, ...]
    #: Empty for a row that is left out.
    after: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class ShownKind:
    """A kind of change with its rows."""

    step: str
    words: str
    rows: int
    examples: tuple[ShownChange, ...]


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """Everything that the page says of a plan."""

    rows_in: int
    rows: int
    #: Rows that go for what they hold, and whether they are more than go unasked.
    lost: int
    is_much: bool
    #: Each step's name and its JSON.
    steps: tuple[tuple[str, Mapping[str, Any]], ...]
    columns: tuple[Mapping[str, Any], ...]
    keys: Mapping[str, int]
    kinds: tuple[ShownKind, ...]
    groups: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]

    @property
    def has_unnamed_columns(self) -> bool:
        """Whether some column has no role yet."""
        return any(not column["role"] for column in self.columns)


def present_plan(plan: DataPlan) -> ShownPlan:
    """A plan that is made."""
    made = plan.plan
    summary = made["summary"]
    lost = count_lost(summary)
    kinds = [
        ShownKind(
            _STEPS[step],
            words,
            summary["reasons"].get(step, {}).get(words, len(rows)),
            tuple(_compare(row) for row in rows),
        )
        for step, found in made["examples"].items()
        for words, rows in found.items()
    ]
    return ShownPlan(
        rows_in=summary["rows_in"],
        rows=plan.rows,
        lost=lost,
        is_much=is_much(lost, summary),
        steps=tuple((_STEPS[step["name"]], step) for step in made["steps"]),
        columns=tuple(made["columns"]),
        # The database keeps no order.
        keys=dict(sorted(made["keys"].items(), key=lambda each: (-each[1], each[0]))),
        kinds=tuple(kinds),
        groups=tuple(made["groups"]),
        notes=tuple(summary["notes"]),
    )


def list_roles() -> list[tuple[str, str]]:
    """What a column may hold, in words."""
    return [(role, f"{role.replace('_', ' ')}: {_ROLE_WORDS[role]}") for role in ROLES]


def _compare(row: Mapping[str, Any]) -> ShownChange:
    before, after = _WORD.findall(row["before"]), _WORD.findall(row["after"])
    left: list[Piece] = []
    right: list[Piece] = []
    for tag, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        left.append(Piece("".join(before[a:b]), tag != "equal"))
        right.append(Piece("".join(after[c:d]), tag != "equal"))
    if not after:
        left = [Piece(row["before"], False)]
    return ShownChange(row["line"], tuple(left), tuple(right) if after else ())
