"""The beats of a simulated market: the market's own driver, with decided bids in place of a log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from zlib import crc32

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.log.events import Event, NodeJoined, PricesSolved, SlotAdvanced
from scheduler.auction.prices import Settings
from scheduler.auction.prices.beats import SeenBids, solve_for_beat
from scheduler.types import Beat, NodeSpec, Task


def make_day_rules(
    rules: ZoneRules, *, slots: int, past_days: int, seed: int, settings: Settings | None = None
) -> ZoneRules:
    """Give the rules of a log that has seen so many days before the one that is sold.

    A bid is decided in the slot before its arrival. The horizon rolls on, and nodes leave at the
    day's end (``join_for_a_day``).
    """
    given = {} if settings is None else asdict(settings)
    return replace(
        rules,
        first_slot=-past_days * slots - 1,
        horizon_slots=slots,
        day_slots=slots,
        # The log's first value follows from its rules, and the seeds of solves from that.
        settings={**rules.settings, **given, "seed": seed},
    )


def join_for_a_day(engine: Engine, fleet: Sequence[NodeSpec], *, slots: int) -> None:
    """Put nodes on sale until the day's end, so that nothing beyond it is sold or priced."""
    for node in fleet:
        until = slots - 1 if node.available_until is None else node.available_until
        engine.transition(NodeJoined(replace(node, available_until=until)))


@dataclass(frozen=True, slots=True)
class DecidedDay:
    """What a log tells of a day that is over, slots counted from its start."""

    #: As ``show_outcome`` gives them; no id is that of another day's bid.
    bids: Sequence[Task] = ()
    #: Ids of those that were admitted.
    won: Collection[str] = frozenset()


def list_past_bids(days: Sequence[DecidedDay], *, slots: int) -> tuple[list[Task], set[str]]:
    """Give the bids of past days in order and in slots before 0, and the ids of those that won.

    The days are given with the latest first.
    """
    found = [
        replace(
            task,
            arrival_slot=task.arrival_slot - back * slots,
            deadline_slot=task.deadline_slot - back * slots,
        )
        for back in range(len(days), 0, -1)
        for task in days[back - 1].bids
    ]
    return found, set[str]().union(*(day.won for day in days))


def list_beats(tasks: Sequence[Task], rules: ZoneRules) -> Iterator[tuple[Beat, Sequence[Task]]]:
    """Give each beat of a day with the bids that are decided in it.

    Where in its slot a bid comes follows from its id alone, so that no other bid moves it.
    """
    parts = rules.beats_per_slot
    by_beat = defaultdict[Beat, list[Task]](list)
    for task in tasks:
        part = crc32(task.id.encode()) % parts
        by_beat[Beat(task.arrival_slot - 1, part)].append(task)
    for slot in range(max((task.arrival_slot for task in tasks), default=-1) + 1):
        for part in range(parts):
            beat = Beat(slot - 1, part)
            yield beat, by_beat[beat]


class SimulatedBeats:
    """Advances an engine from beat to beat, each with the prices solved on the one before.

    Parameters
    ----------
    engine : Engine
    apply : callable
        Applies an event to it.
    seen : sequence of Task
        Decided bids as ``show_outcome`` gives them; the caller adds to them.
    won : set of str
        Ids of those that were admitted; likewise.
    """

    def __init__(
        self,
        engine: Engine,
        apply: Callable[[Event], Any],
        seen: Sequence[Task],
        won: set[str],
    ) -> None:
        self._engine, self._apply = engine, apply
        self._seen, self._won = seen, won
        self._waiting: PricesSolved | None = None

    def reach(self, beat: Beat) -> Any:
        """Let a beat come, and solve on it for the next; what ``apply`` gives for the beat."""
        begun = self._apply(SlotAdvanced(beat.slot, beat.part))
        if self._waiting is not None:
            self._apply(self._waiting)
        self._waiting = solve_for_beat(
            self._engine, load=lambda _: SeenBids(tasks=self._seen, won=self._won)
        )
        return begun
