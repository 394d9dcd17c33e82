"""What a replay of a zone's log finds."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.auction.log import events
from scheduler.types import Cell, NodeSpec

#: Problems named; one is enough to fail.
PROBLEMS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class PostedEntry:
    """Rates in the log, and the nodes on sale when they were posted."""

    position: int
    event: events.RatesPosted
    nodes: tuple[NodeSpec, ...]


@dataclass(slots=True)
class VerifyReport:
    """What a replay of one zone found."""

    zone: str
    entries: int = 0
    decisions: int = 0
    head_hash: str = ""
    #: Solves that were run again and came to the logged prices, and those that were not run.
    solved_again: int = 0
    taken_as_logged: int = 0
    problems: list[str] = field(default_factory=list)
    #: Jobs of the express lane with the cells that they sit in.
    express: dict[str, tuple[tuple[str, Cell], ...]] = field(
        default_factory=dict[str, tuple[tuple[str, Cell], ...]]
    )
    #: Posted rates, which ``pricing.daily_rates`` makes again.
    posted: list[PostedEntry] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems
