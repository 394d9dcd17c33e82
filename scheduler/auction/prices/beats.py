"""The beats at which prices come into force: the one driver of solves.

A slot has a fixed number of beats. A solve reads the state and the bids of one beat and comes into
force at the next one, however long it took; where it is late, prices stand. So nobody chooses when
prices are solved or what of: all of it follows from the log. The market, the simulator and the
verifier of a log call what is here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import Any

from scheduler.auction.engine.engine import Engine
from scheduler.auction.log.events import PricesSolved, SlotAdvanced
from scheduler.auction.log.rules import ZoneRules
from scheduler.auction.prices.forecast_span import (
    PAST_DAYS,
    ForecastSpan,
    choose_span,
    find_sampling,
)
from scheduler.auction.prices.solve import SOLVER, KnownBids, read_settings, solve_prices
from scheduler.types import Beat, Task

#: Where a zone's settings are silent.
BEATS_PER_SLOT = 4


@dataclass(frozen=True, slots=True)
class SeenBids:
    """Decided bids, refused ones too, as a solve reads them off the log."""

    #: In order of arrival, those of other slots than a span's left out or not.
    tasks: Sequence[Task]
    #: Ids of those that were admitted and not refunded.
    won: Collection[str] = field(default_factory=frozenset[str])
    #: First log position looked at; the last is the state's.
    first_position: int = 1

    def split(self, span: ForecastSpan) -> tuple[list[Task], list[list[Task]]]:
        """Give the bids of today, and of each past day with slots counted from its start."""
        return [task for task in self.tasks if task.arrival_slot >= span.day_start], [
            [
                _move_back(task, start)
                for task in self.tasks
                if start <= task.arrival_slot < start + span.length
            ]
            for start in span.past_starts
        ]


def _move_back(task: Task, slots: int) -> Task:
    return replace(
        task, arrival_slot=task.arrival_slot - slots, deadline_slot=task.deadline_slot - slots
    )


def count_beats(rules: ZoneRules) -> int:
    """Give the beats of a slot."""
    return int(rules.settings.get("beats_per_slot", BEATS_PER_SLOT))


def find_next_beat(beat: Beat, rules: ZoneRules) -> Beat:
    """Give the beat at which a solve of a beat's state comes into force."""
    if beat.part + 1 < count_beats(rules):
        return replace(beat, part=beat.part + 1)
    return Beat(beat.slot + 1)


def find_beat_before(beat: Beat, rules: ZoneRules) -> Beat:
    """Give the beat whose state a solve reads that comes into force at a beat."""
    if beat.part > 0:
        return replace(beat, part=beat.part - 1)
    return Beat(beat.slot - 1, count_beats(rules) - 1)


def find_beat_problem(beat: Beat, before: Beat | None, rules: ZoneRules) -> str | None:
    """Say why a beat cannot come after another, if anything: each comes once, and in order."""
    if not beat.part < count_beats(rules):
        return f"slot {beat.slot} has {count_beats(rules)} beats, and not number {beat.part + 1}"
    if before is not None and beat <= before:
        return f"beat {beat.part + 1} of slot {beat.slot} has come already"
    return None


def choose_seed(state: Engine, beat: Beat) -> int:
    """Give what a solve's random choices follow from: the day's value and the beat.

    No one chooses it, and no bid and no rule has a part in it.
    """
    text = f"{state.day.value}|{beat.slot}|{beat.part}"
    return int(sha256(text.encode()).hexdigest()[:8], 16)


def choose_beat_span(state: Engine, beat: Beat) -> ForecastSpan:
    """Give the slots that a solve for a beat looks at."""
    rules = state.rules
    return choose_span(
        day_slots=rules.day_slots,
        # Bids that are decided in a slot start in the next: a task's arrival is that one.
        began=rules.first_slot + 1,
        # Those that come until the prices are in force take room as well.
        slot=find_beat_before(beat, rules).slot + 1,
        last_slot=beat.slot + rules.horizon_slots - 1,
        past_days=int(rules.settings.get("past_days", PAST_DAYS)),
    )


def list_inputs(state: Engine, beat: Beat, *, first_position: int) -> dict[str, Any]:
    """Give what a solve is made of, but for counts: all of it follows from the log.

    Parameters
    ----------
    state : Engine
        At the beat before.
    beat : Beat
        At which the prices come into force.
    first_position : int
        Of the log, from which on bids are read.
    """
    span = choose_beat_span(state, beat)
    return {
        "solver": SOLVER,
        "position": state.position,
        "slot": span.slot,
        "beat": [beat.slot, beat.part],
        "last_slot": span.last_slot,
        "day_start": span.day_start,
        "past_starts": list(span.past_starts),
        "settings": asdict(read_settings(state.rules.settings)),
        "first_position": first_position,
        "every": find_sampling(first=first_position, last=state.position),
    }


def solve_for_beat(
    state: Engine, beat: Beat, *, load: Callable[[ForecastSpan], SeenBids], salt: str = ""
) -> PricesSolved:
    """Solve on the state of one beat for the prices of the next.

    Parameters
    ----------
    state : Engine
        Stays as it is.
    beat : Beat
        At which the prices come into force.
    load : callable
        Gives the bids of a span that were decided up to the state's position.
    salt : str
        Secret text for the commitment to what would tell of single bids.
    """
    engine, span = state.replica(), choose_beat_span(state, beat)
    engine.transition(SlotAdvanced(beat.slot, beat.part))
    seen = load(span)
    today, past_days = seen.split(span)
    every = find_sampling(first=seen.first_position, last=state.position)
    return solve_prices(
        engine,
        KnownBids(
            slot=span.slot,
            last_slot=span.last_slot,
            day_start=span.day_start,
            today=today,
            past_days=past_days,
            won=seen.won,
            each=float(every),
            left=1.0 - find_beat_before(beat, state.rules).part / count_beats(state.rules),
            given={
                "beat": [beat.slot, beat.part],
                "past_starts": list(span.past_starts),
                "first_position": seen.first_position,
                "every": every,
            },
        ),
        seed=choose_seed(state, beat),
        settings=read_settings(state.rules.settings),
        salt=salt,
    )


def find_timing_problem(inputs: Mapping[str, Any], beat: Beat, *, position: int) -> str | None:
    """Say why prices may not come into force at a beat, if anything.

    Verifiers ask it of logged solves, and a market's lane of a solve that waits.

    Parameters
    ----------
    inputs : mapping
        Of a ``PricesSolved`` event.
    beat : Beat
        That has just come.
    position : int
        Of the state that the beat before left; 0 where there is none.
    """
    if inputs["beat"] != [beat.slot, beat.part]:
        return f"the prices are for another beat: {inputs['beat']}"
    if inputs["position"] != position:
        return "the prices were not solved on the state of the beat before"
    return None
