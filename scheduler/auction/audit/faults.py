"""Faults that a replay finds in what a log's entries were made of, and errata that name them.

Such an entry is wrong, and yet the log goes on from it: prices in force are in force however they
were made. A log that contradicts itself has no such faults; its replay ends there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import isclose

import numpy as np

from scheduler.auction.engine.cell_prices import Prices
from scheduler.auction.log.events import ErratumNoted, Event
from scheduler.auction.log.limits import MOST_MONEY

#: Largest difference between amounts of an erratum and those that a replay finds, as a share.
_SAME_AMOUNT = 1e-3
#: Of the largest price of its kind: another machine's arithmetic may end in other last digits.
LAST_DIGITS = 1e-6


@dataclass(frozen=True, slots=True)
class KnownFault:
    """An entry that the market itself has named as wrong, in a later entry of the log."""

    position: int
    #: What the market says of it.
    problem: str
    #: Of the entry that says so.
    named_at: int
    #: What it says that a replay finds.
    rule: str
    off_by: Mapping[str, float]
    #: What this replay found; ``None`` where it found nothing, as it may where the log begins with
    #: a snapshot.
    found: str | None
    #: Whether this replay worked the amounts out too.
    measured: bool

    def __str__(self) -> str:
        amounts = ", ".join(f"{kind} {amount:.6g}" for kind, amount in self.off_by.items())
        seen = (
            self.found
            or "nothing; the bids that its prices are made of may stand before this log begins"
        )
        checked = "worked out again" if self.measured else "not worked out again"
        return (
            f"entry {self.position} is wrong, as entry {self.named_at} says: {self.problem} "
            f"Rule: {self.rule}. Prices are off by at most: {amounts or 'nothing'} ({checked}). "
            f"Found here: {seen}."
        )


@dataclass(frozen=True, slots=True)
class WrongPrices:
    """What is wrong with what an entry's prices were made of."""

    rule: str
    #: By kind of price, how far the furthest is from what follows from the log at this place;
    #: ``None`` where that cannot be told, as its bids stand before the log begins.
    off_by: Mapping[str, float] | None


@dataclass(frozen=True, slots=True)
class Fault:
    """An entry that is wrong, and where the log stood before it."""

    position: int
    problem: str
    entries: int
    head_hash: str
    #: As of ``WrongPrices``.
    off_by: Mapping[str, float] | None = None


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
        named = [event for position, event in self._named if event.entry < position]
        excused = {one.entry for one in named if self._is_excused(one)}
        return next((one for at, one in self._found.items() if at not in excused), None)

    def _is_excused(self, erratum: ErratumNoted) -> bool:
        """Whether an erratum names what was found, and by how much."""
        fault = self._found.get(erratum.entry)
        if fault is None or fault.problem != erratum.rule:
            return False
        return fault.off_by is None or _are_same(erratum.off_by, fault.off_by)

    def list_known(self) -> tuple[KnownFault, ...]:
        """Faults that the log names, in the order in which it does."""
        return tuple(
            KnownFault(
                event.entry,
                event.problem,
                position,
                event.rule,
                event.off_by,
                *self._describe(event.entry),
            )
            for position, event in self._named
        )

    def _describe(self, entry: int) -> tuple[str | None, bool]:
        fault = self._found.get(entry)
        return (None, False) if fault is None else (fault.problem, fault.off_by is not None)


def _are_same(named: Mapping[str, float], found: Mapping[str, float]) -> bool:
    return named.keys() == found.keys() and all(
        isclose(named[kind], found[kind], rel_tol=_SAME_AMOUNT) for kind in found
    )


def measure_difference(
    logged: Mapping[str, Sequence[float]], follows: Mapping[str, Sequence[float]]
) -> float:
    """Give the largest difference between rows of prices; 0 for one of last digits.

    Parameters
    ----------
    logged, follows : mapping of str to sequence of float
        Rows by name. Where one of them lacks a row, or the end of it, that is of zeros.
    """
    furthest = largest = 0.0
    for name in logged.keys() | follows.keys():
        rows = logged.get(name, ()), follows.get(name, ())
        for one, other in zip_longest(*rows, fillvalue=0.0):
            furthest, largest = max(furthest, abs(one - other)), max(largest, abs(other))
    return furthest if furthest > LAST_DIGITS * largest else 0.0


def measure_prices(logged: Prices, follows: Prices) -> dict[str, float]:
    """Give by kind of price the largest difference between those in force; no kind without one.

    A cell that is on sale in one of them alone is off by the most there is.
    """
    found = dict[str, float]()
    for name in ("compute_price", "memory_price", "reserve_price"):
        one, other = (
            np.nan_to_num(getattr(prices, name), posinf=MOST_MONEY) for prices in (logged, follows)
        )
        furthest = float(np.max(np.abs(one - other), initial=0.0))
        known = np.abs(other)[other < MOST_MONEY]
        if furthest > LAST_DIGITS * float(np.max(known, initial=0.0)):
            found[name] = furthest
    return found
