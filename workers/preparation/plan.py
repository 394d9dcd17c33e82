"""What a preparation does to a data set, as a value: shown before it is sold, and compared after.

The plan is what ``prepare_dataset`` itself counts while it works, so that a plan and the work that
follows it cannot be computed in two ways.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workers.preparation.changes import Action, ChangedRow, ChangeLog, Step
from workers.preparation.roles import PlannedColumn

#: Groups of duplicates that a plan lists, the largest first, and rows that it shows of each.
GROUPS_LISTED = 20
ROWS_OF_GROUP = 10
#: What a plan is for: the settings that say which rows are held out change no row.
_SPLIT_SETTINGS = frozenset({"validation_share", "seed"})


@dataclass(frozen=True, slots=True)
class PreparationSummary:
    """What became of a data set."""

    rows_in: int
    rows_out: int
    rows_held_out: int
    #: Rows that are not as they were, and rows left out, by step.
    changed: dict[str, int]
    dropped: dict[str, int]
    #: Of those left out, the rows that repeat another but for case and spaces.
    exact_duplicates: int
    #: Those that repeat the same few words, which nobody asked to be left out.
    repetitive: int
    #: Kinds of reasons by step, most frequent first.
    reasons: dict[str, dict[str, int]]
    #: Personal data replaced, by kind.
    masked: dict[str, int]
    format: str | None
    #: What the steps cannot do, for the owner to know.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step: rows that come to it, rows that go on, and rows that it changes."""

    name: str
    rows_before: int
    rows_after: int
    changed: int
    #: Of the rows' texts, by the tokenizer that was given; 0 without one.
    tokens_before: int = 0
    tokens_after: int = 0


@dataclass(frozen=True, slots=True)
class DuplicateGroup:
    """Rows that say the same: one stays."""

    #: Line of the row that stays, from 1, and its excerpt.
    line: int
    text: str
    #: Rows that are left out, all of them.
    left_out: int
    #: The first of those, as lines with their excerpts.
    rows: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class PreparationPlan:
    """All that a preparation does, step by step."""

    #: ``PreparationSettings`` without those of held-out rows.
    settings: dict[str, Any]
    summary: PreparationSummary
    steps: tuple[PlannedStep, ...]
    #: The file's columns, and what each is taken for.
    columns: tuple[PlannedColumn, ...]
    #: What becomes of each key, as a sentence, and in how many rows.
    keys: dict[str, int]
    #: Ten rows of each kind of change, by step and kind.
    examples: dict[str, dict[str, list[ChangedRow]]]
    groups: tuple[DuplicateGroup, ...]
    #: Of the rows that stay, held out or not, in their order.
    rows_sha256: str

    @property
    def rows_kept(self) -> int:
        """Rows that stay, held out or not."""
        return self.summary.rows_out + self.summary.rows_held_out

    @property
    def digest(self) -> str:
        """SHA-256 of what is done: equal for a plan and for work that does the same."""
        done = {
            "settings": self.settings,
            "rows_in": self.summary.rows_in,
            "rows_kept": self.rows_kept,
            "rows_sha256": self.rows_sha256,
            "changed": self.summary.changed,
            "dropped": self.summary.dropped,
        }
        text = json.dumps(done, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()


def drop_split_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that change rows."""
    return {name: value for name, value in settings.items() if name not in _SPLIT_SETTINGS}


def count_steps(
    log: ChangeLog, *, rows_in: int, tokens_in: int, tokens_lost: Mapping[Step, int]
) -> tuple[PlannedStep, ...]:
    """Rows and tokens before and after each step, in the order of the steps."""
    steps: list[PlannedStep] = []
    rows, tokens = rows_in, tokens_in
    for step in Step:
        left = rows - log.count(step, Action.DROPPED)
        rest = tokens - tokens_lost.get(step, 0)
        changed = log.count(step, Action.CHANGED)
        steps.append(PlannedStep(step.value, rows, left, changed, tokens, rest))
        rows, tokens = left, rest
    return tuple(steps)


def list_groups(
    groups: Mapping[int, Sequence[int]], *, show: Callable[[int], tuple[int, str]]
) -> tuple[DuplicateGroup, ...]:
    """The largest groups of duplicates.

    Parameters
    ----------
    groups
        Positions of the rows left out, by the position of the row that stays.
    show
        Line and excerpt of the row at a position.
    """
    largest = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    return tuple(
        DuplicateGroup(
            *show(first),
            left_out=len(others),
            rows=tuple(show(position) for position in others[:ROWS_OF_GROUP]),
        )
        for first, others in largest[:GROUPS_LISTED]
    )
