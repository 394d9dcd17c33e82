"""Faults that a replay finds in what a log's entries were made of, and errata that name them.

Such an entry is wrong, and yet the log goes on from it: prices in force are in force however they
were made. A log that contradicts itself has no such faults; its replay ends there.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.auction.log.events import ErratumNoted, Event


@dataclass(frozen=True, slots=True)
class KnownFault:
    """An entry that the market itself has named as wrong, in a later entry of the log."""

    position: int
    #: What the market says of it.
    problem: str
    #: Of the entry that says so.
    named_at: int
    #: What this replay found; ``None`` where it found nothing, as it may where bids are left out.
    found: str | None


@dataclass(frozen=True, slots=True)
class Fault:
    """An entry that is wrong, and where the log stood before it."""

    position: int
    problem: str
    entries: int
    head_hash: str


class Faults:
    """Those of one replay."""

    def __init__(self) -> None:
        self._found: dict[int, Fault] = {}
        self._named: list[tuple[int, ErratumNoted]] = []

    def note(self, fault: Fault) -> None:
        """Note a fault, with which the replay goes on."""
        self._found[fault.position] = fault

    def read(self, event: Event, *, position: int) -> None:
        """Read an entry that may name a fault."""
        if isinstance(event, ErratumNoted):
            self._named.append((position, event))

    def find_unnamed(self) -> Fault | None:
        """The first fault that no later entry names."""
        named = {event.entry for position, event in self._named if event.entry < position}
        return next((one for at, one in self._found.items() if at not in named), None)

    def list_known(self) -> tuple[KnownFault, ...]:
        """Faults that the log names, in the order in which it does."""
        return tuple(
            KnownFault(
                event.entry,
                event.problem,
                position,
                self._found[event.entry].problem if event.entry in self._found else None,
            )
            for position, event in self._named
        )
