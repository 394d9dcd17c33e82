"""What a replay of a zone's log finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduler.auction.audit.faults import Fault, KnownFault
from scheduler.types import Cell

#: Problems named; one is enough to fail.
PROBLEMS_SHOWN = 20


@dataclass(slots=True)
class VerifyReport:
    """What a replay of one zone found."""

    zone: str
    #: Position after which it began; entries up to there were verified before.
    begins_at: int = 0
    entries: int = 0
    decisions: int = 0
    head_hash: str = ""
    #: Solves and posted rates made again that came to what is logged, and those that were not.
    solved_again: int = 0
    taken_as_logged: int = 0
    #: Beats without prices, entries at which a beat had been due for more than a minute, and days
    #: whose value no witness had a part in.
    beats_missed: int = 0
    beats_late: int = 0
    unwitnessed: int = 0
    problems: list[str] = field(default_factory=list)
    #: The first entry that is wrong in what it was made of and that no other names.
    unnamed: Fault | None = None
    #: Entries that are wrong, and that the log itself names so.
    known_faults: tuple[KnownFault, ...] = ()
    #: Jobs of the express lane with the cells that they sit in.
    express: dict[str, tuple[tuple[str, Cell], ...]] = field(
        default_factory=dict[str, tuple[tuple[str, Cell], ...]]
    )

    #: Faults before it began that the log names, each as a sentence.
    known_before: tuple[str, ...] = ()
    #: Position of the last solve.
    solved: int | None = None
    #: The engine's state at the end, where all agrees.
    state: Mapping[str, Any] | None = None

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def faults(self) -> tuple[str, ...]:
        """Faults that the log names, each as a sentence."""
        return (*self.known_before, *map(str, self.known_faults))

    @property
    def verdict(self) -> str:
        """What the replay comes to, in words."""
        if not self.ok:
            return "DIFFERS"
        if not self.faults:
            return "verified"
        count = len(self.faults)
        entries = "1 entry" if count == 1 else f"{count} entries"
        return f"verified but for {entries} that the log names as wrong"
