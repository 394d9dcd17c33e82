"""The beats at which prices come into force: the one driver of solves.

A slot has a fixed number of beats. A solve reads the state and the bids of one beat and comes into
force at the next one, however long it took; where it is late, prices stand. So nobody chooses when
prices are solved or what of: all of it follows from the log. The market, the simulator and the
verifier of a log call what is here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
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
from scheduler.public_log.days import choose_seed
from scheduler.types import Beat, Task


@dataclass(frozen=True, slots=True)
class SeenBids:
    """Decided bids, refused ones too, as a solve reads them off the log (``show_outcome``)."""

    #: In order of arrival, those of other slots than a span's left out or not.
    tasks: Sequence[Task]
    #: Ids of those that were admitted and not refunded, and of those that were refunded.
    won: Collection[str] = field(default_factory=frozenset[str])
    refunded: Collection[str] = field(default_factory=frozenset[str])
    #: First log position looked at; the last is the state's.
    first_position: int = 1

    def split(self, span: ForecastSpan) -> tuple[list[Task], list[list[Task]]]:
        """Give the bids of today, and of each past day with slots counted from its start.

        Of what a refunded job is worth nothing is known: its price was taken, and did not stay so.
        """
        tasks = [
            replace(task, bid=inf) if task.id in self.refunded else task for task in self.tasks
        ]
        return [task for task in tasks if task.arrival_slot >= span.day_start], [
            [
                _move_back(task, start)
                for task in tasks
                if start <= task.arrival_slot < start + span.length
            ]
            for start in span.past_starts
        ]


def _move_back(task: Task, slots: int) -> Task:
    return replace(
        task, arrival_slot=task.arrival_slot - slots, deadline_slot=task.deadline_slot - slots
    )


def find_next_beat(state: Engine) -> Beat:
    """Give the beat after a state's, at which a solve of it comes into force."""
    last = _find_last_beat(state)
    if last.part + 1 < state.rules.beats_per_slot:
        return replace(last, part=last.part + 1)
    return Beat(last.slot + 1)


def _find_last_beat(state: Engine) -> Beat:
    return state.beat or Beat(state.horizon.first_slot)


def find_beat_problem(beat: Beat, before: Beat | None, rules: ZoneRules) -> str | None:
    """Say why a beat cannot come after another, if anything: each comes once, and in order."""
    if not beat.part < rules.beats_per_slot:
        return f"slot {beat.slot} has {rules.beats_per_slot} beats, and not number {beat.part + 1}"
    if before is not None and beat <= before:
        return f"beat {beat.part + 1} of slot {beat.slot} has come already"
    return None


def choose_beat_span(state: Engine) -> ForecastSpan:
    """Give the slots that a solve of a state looks at, for the prices of its next beat."""
    after, rules = find_next_beat(state).slot, state.next_rules
    return choose_span(
        day_slots=rules.day_slots,
        # Bids that are decided in a slot start in the next: a task's arrival is that one.
        began=rules.first_slot + 1,
        # Those that come until the prices are in force take room as well.
        slot=_find_last_beat(state).slot + 1,
        last_slot=after + rules.horizon_slots - 1,
        past_days=int(rules.settings.get("past_days", PAST_DAYS)),
    )


def list_inputs(state: Engine, *, first_position: int) -> dict[str, Any]:
    """Give what a solve is made of, but for counts: all of it follows from the log.

    Parameters
    ----------
    state : Engine
        As the beat before left it.
    first_position : int
        Of the log, from which on bids are read.
    """
    span, beat = choose_beat_span(state), find_next_beat(state)
    return {
        "solver": SOLVER,
        "position": state.position,
        "slot": span.slot,
        "beat": [beat.slot, beat.part],
        "last_slot": span.last_slot,
        "day_start": span.day_start,
        "past_starts": list(span.past_starts),
        "settings": asdict(read_settings(state.next_rules.settings)),
        "first_position": first_position,
        "every": find_sampling(first=first_position, last=state.position),
    }


def solve_for_beat(state: Engine, *, load: Callable[[ForecastSpan], SeenBids]) -> PricesSolved:
    """Solve on the state of one beat for the prices of the next.

    Parameters
    ----------
    state : Engine
        As the beat left it; it stays so.
    load : callable
        Gives the bids of a span that were decided up to the state's position.
    """
    engine, span, beat = state.replica(), choose_beat_span(state), find_next_beat(state)
    engine.transition(SlotAdvanced(beat.slot, beat.part))
    seen = load(span)
    today, past_days = seen.split(span)
    inputs = list_inputs(state, first_position=seen.first_position)
    return solve_prices(
        engine,
        KnownBids(
            slot=span.slot,
            last_slot=span.last_slot,
            day_start=span.day_start,
            today=today,
            past_days=past_days,
            won=seen.won,
            each=float(inputs["every"]),
            left=1.0 - _find_last_beat(state).part / state.rules.beats_per_slot,
            inputs=inputs,
        ),
        seed=choose_seed(state.day.value, slot=beat.slot, part=beat.part),
        settings=read_settings(engine.rules.settings),
    )


def is_idle(state: Engine, seen: SeenBids) -> bool:
    """Whether a solve on a beat's state would change nothing: no bids, and prices are at cost."""
    prices = state.prices()
    at_cost = not (prices.compute_price.any() or prices.memory_price.any())
    return not seen.tasks and at_cost and not state.rules.posts_rates


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
