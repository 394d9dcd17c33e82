"""Solving again: logged prices and rates are held against what the log's own bids lead to.

A replay takes solved prices as they stand, so a market that sees a bid could log prices just below
it. Here the solve is run again by the market's own driver (``prices.beats``): on the state of the
beat before, from the log's bids in its slots, with the seed that follows from the day's value.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from functools import partial
from typing import Any

from scheduler.auction.audit.faults import WrongPrices, measure_difference, measure_prices
from scheduler.auction.audit.rates_again import (
    find_rates_problem,
    make_rates_of_place,
    measure_rates,
)
from scheduler.auction.audit.solve_differences import find_difference
from scheduler.auction.engine.engine import Engine
from scheduler.auction.log.events import (
    BidArrived,
    CellsReleased,
    DayOpened,
    Event,
    PricesSolved,
    RatesPosted,
    SlotAdvanced,
)
from scheduler.auction.log.limits import MOST_MONEY
from scheduler.auction.log.outcomes import Outcome
from scheduler.auction.prices.beats import (
    SeenBids,
    choose_beat_span,
    find_beat_problem,
    find_timing_problem,
    is_idle,
    list_inputs,
    solve_for_beat,
)
from scheduler.auction.prices.forecast_span import ForecastSpan, find_sampling
from scheduler.auction.prices.solve import SOLVER
from scheduler.auction.prices.worths import show_outcome
from scheduler.public_log.days import WITH_BEAT, choose_seed
from scheduler.types import Beat, Decision, Task

#: What values that somebody made up may raise.
_NOTHING = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
#: An amount that no log can say, so no erratum excuses it.
_UNSPEAKABLE = 2.0 * MOST_MONEY


class BidsLeftOut(ValueError):
    """Other bids are named than prices have to be made of."""


class _BidsUnknown(Exception):
    """Bids that rates are made of stand before the log's beginning."""


class SolveAudit:
    """Runs the solves of a log again as it is replayed.

    Parameters
    ----------
    begin : int
        Position of the state that the log builds on; bids up to there are not known.
    """

    def __init__(self, begin: int) -> None:
        self._begin = begin
        #: Position of the latest beat, the state that it leaves to the next beat's prices, and the
        #: state that the beat before left.
        self._beat_at = 0
        self._is_priced = False
        self._left: Engine | None = None
        self._before: Engine | None = None
        #: What the seed of the latest beat's prices follows from.
        self._value = ""
        #: Slot and position of each beat that began one, after those where the log begins; the day
        #: of the latest.
        self._slots: list[tuple[int, int]] = []
        self._day: int | None = None
        #: The bid of the latest entry, which is decided next.
        self._arrived: Task | None = None
        #: Positions of decided bids in rising order, and the bids, as ``show_outcome`` gives them.
        self._positions: list[int] = []
        self._bids: list[Task] = []
        self._won: set[str] = set()
        #: Positions at which the price of those that won went back.
        self._refunded: dict[str, int] = {}
        #: Solves and posted rates that came to what is logged.
        self.solved_again = 0
        #: Those from bids that are not known: they are from before the log begins.
        self.taken_as_logged = 0
        #: Beats that were passed over or had no prices, so that those before stood.
        self.beats_missed = 0
        #: Days whose value no witness had a part in.
        self.unwitnessed = 0

    def find_problem(self, engine: Engine, event: Event, *, position: int) -> WrongPrices | None:
        """Look at the next event of the log; of prices and rates, say what differs, and how far.

        Parameters
        ----------
        engine : Engine
            As it is before the event.
        event : Event
        position : int
            Of the entry before it.
        """
        if not self._slots:
            self._slots.append((engine.horizon.first_slot, max(1, self._begin)))
            self._day = None if engine.beat is None else engine.today
        if self._beat_at and self._left is None and type(event).__name__ not in WITH_BEAT:
            self._left = engine.replica()
            self._left.position = position
            self.beats_missed += not self._is_priced and self._was_due()
        match event:
            case SlotAdvanced():
                return _refuse(self._note_beat(engine, event, position=position))
            case BidArrived(task=task):
                self._positions.append(position + 1)
                self._arrived = task
            case CellsReleased(task_id=task_id, refunded=True):
                self._refunded.setdefault(task_id, position + 1)
            case PricesSolved():
                self._is_priced = True
                rule = self._check_solve(engine, event, position=position)
                return WrongPrices(rule, self._measure_solve(engine, event)) if rule else None
            case RatesPosted():
                rule = self._check_rates(engine, event)
                return WrongPrices(rule, self._measure_rates(engine, event)) if rule else None
            case DayOpened():
                return _refuse(self._check_day(engine, event))
            case _:
                pass
        return None

    def note_outcome(self, outcome: Outcome) -> None:
        """Note what the next event led to, once it was found to be so."""
        if self._arrived is not None and isinstance(outcome, Decision):
            self._bids.append(show_outcome(self._arrived, outcome))
            if outcome.admitted:
                self._won.add(outcome.task_id)
        self._arrived = None

    def _note_beat(self, engine: Engine, event: SlotAdvanced, *, position: int) -> str | None:
        rules, beat = engine.rules, Beat(event.slot, event.part)
        problem = find_beat_problem(beat, engine.beat, rules)
        if problem is not None:
            return problem
        self._before, self._left = self._left, None
        if (last := engine.beat) is not None:
            beats = (beat.slot - last.slot) * rules.beats_per_slot + beat.part - last.part
            self.beats_missed += (beats - 1) * (beats > 1 and self._was_due())
        self._beat_at, self._is_priced, self._value = position + 1, False, engine.day.value
        if beat.slot > self._slots[-1][0]:
            self._slots.append((beat.slot, position + 1))
        if self._day != beat.slot // rules.day_slots:
            self._day = beat.slot // rules.day_slots
            # Until a witness's signature is found.
            self.unwitnessed += 1
        return None

    def _was_due(self) -> bool:
        """Whether a solve on the beat before would have had anything to do."""
        state = self._before
        if state is None:
            return False
        return not is_idle(state, self._select(choose_beat_span(state), last=state.position))

    def _list_won(self, position: int) -> set[str]:
        """Give the bids that had won and were not refunded at a position, and later ones."""
        return self._won - self._list_refunded(position)

    def _list_refunded(self, position: int) -> set[str]:
        return {name for name, at in self._refunded.items() if at <= position}

    def _check_day(self, engine: Engine, event: DayOpened) -> str | None:
        """The engine holds secret and signature against the promise; here it is about when."""
        if self._beat_at and self._left is not None:
            return f"day {event.day} is not opened with its first beat"
        promise = engine.day.promise
        if promise is not None:
            # The market's own signature is no witness's.
            self.unwitnessed -= promise.witness_key not in ("", promise.market_key)
        return None

    def _check_solve(self, engine: Engine, event: PricesSolved, *, position: int) -> str | None:
        inputs, beat, state = event.inputs, engine.beat, self._before
        if beat is None or self._beat_at != position:
            if not self._beat_at and 0 < self._begin == position:
                self.taken_as_logged += 1
                return None
            return "the prices do not come with a beat"
        solver = inputs.get("solver")
        if solver != SOLVER:
            return f"prices of solver {solver}: this program solves as {SOLVER}"
        try:
            if state is None and self._begin > 0:
                return self._check_first_solve(event, beat)
            problem = find_timing_problem(inputs, beat, position=state.position if state else 0)
            if problem is not None or state is None:
                return problem or "there is no state that the prices could be solved on"
            first = self._choose_first(inputs, choose_beat_span(state), last=state.position)
            found = list_inputs(state, first_position=first)
            other = [name for name, value in found.items() if inputs.get(name) != value]
            if other:
                return f"the {other[0]} of the solve is not what follows from the log"
            if event.seed != choose_seed(state.day.value, slot=beat.slot, part=beat.part):
                return "the seed of the solve does not follow from the log"
            if 0 < self._begin >= first:
                self.taken_as_logged += 1
                return None
            again = solve_for_beat(state, load=lambda span: self._select(span, last=state.position))
        except BidsLeftOut as error:
            return f"the prices cannot be solved again: {error}"
        except _NOTHING:
            return "the prices cannot be solved again: what they name is nothing to solve"
        self.solved_again += 1
        return find_difference(event, again)

    def _check_first_solve(self, event: PricesSolved, beat: Beat) -> str | None:
        """Check prices that were solved on a state from before the log's beginning."""
        if event.inputs["beat"] != [beat.slot, beat.part]:
            return f"the prices are for another beat: {event.inputs['beat']}"
        if event.seed != choose_seed(self._value, slot=beat.slot, part=beat.part):
            return "the seed of the solve does not follow from the log"
        self.taken_as_logged += 1
        return None

    def _check_rates(self, engine: Engine, event: RatesPosted) -> str | None:
        solver = _number(event.inputs, "solver")
        if solver != SOLVER:
            return f"rates of solver {solver}: this program makes them as {SOLVER}"
        try:
            last = _number(event.inputs, "last_position")
            problem = find_rates_problem(
                engine,
                event,
                find_days=partial(self._find_days, end=engine.position),
                won=self._list_won(last),
            )
        except _BidsUnknown:
            self.taken_as_logged += 1
            return None
        except BidsLeftOut as error:
            return f"the rates cannot be made again: {error}"
        except _NOTHING:
            return "the rates cannot be made again: what they name is nothing to make them of"
        self.solved_again += problem is None
        return problem

    def _measure_solve(self, engine: Engine, event: PricesSolved) -> dict[str, float] | None:
        """Give how far prices are from those that a solve for the latest beat would have come to.

        Whatever an entry names that it was made of has no part in it.
        """
        if self._begin > 0:
            return None
        state = self._before or engine
        try:
            follows = solve_for_beat(
                state, load=lambda span: self._select(span, last=state.position)
            )
        except _NOTHING:
            return {"prices": _UNSPEAKABLE}
        found = _measure_in_force(engine, event, follows)
        if event.own_asks != follows.own_asks:
            found["own_asks"] = 1.0
        usual_rates = measure_difference(event.usual_rates, follows.usual_rates)
        return found | ({"usual_rates": usual_rates} if usual_rates else {})

    def _measure_rates(self, engine: Engine, event: RatesPosted) -> dict[str, float] | None:
        if self._begin > 0:
            return None
        won = self._list_won(engine.position)
        name_bids = partial(self._name_bids, last=engine.position)
        find_days = partial(self._find_days, end=engine.position)
        try:
            follows = make_rates_of_place(
                engine, event, name_bids=name_bids, find_days=find_days, won=won
            )
        except _NOTHING:
            return {"rates": _UNSPEAKABLE}
        furthest = measure_rates(event.rates, follows.rates)
        found = _measure_in_force(engine, event, follows)
        return found | ({"rates": furthest} if furthest else {})

    def _name_bids(self, span: ForecastSpan, *, last: int) -> dict[str, Any]:
        """Give the positions that hold the bids of a span, as an event names them."""
        first = self._find_first(span, last=last)
        return {
            "past_starts": list(span.past_starts),
            "first_position": first,
            "last_position": last,
            "every": find_sampling(first=first, last=last),
        }

    def _find_days(
        self, inputs: Mapping[str, Any], span: ForecastSpan, *, end: int
    ) -> list[list[Task]]:
        """Give the bids of a span's past days, named where the log has so many entries.

        Raises
        ------
        BidsLeftOut
            If other positions are named than those that hold them.
        _BidsUnknown
            If they begin before the log does.
        """
        last = int(inputs["last_position"])
        if last > end:
            # Of a longer log fewer bids would be read.
            raise BidsLeftOut("bids are read up to an entry that is not there yet")
        first = self._choose_first(inputs, span, last=last)
        if int(inputs["first_position"]) != first:
            raise BidsLeftOut("bids are read from another entry on than the first of its slots")
        if int(inputs["every"]) != find_sampling(first=first, last=last):
            raise BidsLeftOut("more or fewer of the bids were left out than of so long a log")
        if 0 < self._begin >= first:
            raise _BidsUnknown
        after = bisect_right(self._positions, last)
        if any(task.arrival_slot < span.day_start for task in self._bids[after:]):
            raise BidsLeftOut("bids of its days were left out")
        return self._select(span, last=last).split(span)[1]

    def _select(self, span: ForecastSpan, *, last: int) -> SeenBids:
        """Give the bids of a span that were decided up to a position."""
        first = self._find_first(span, last=last)
        begin = bisect_left(self._positions, first)
        end = bisect_right(self._positions, last)
        every = find_sampling(first=first, last=last)
        return SeenBids(
            tasks=[
                task
                for at, task in zip(self._positions[begin:end], self._bids[begin:end], strict=True)
                if (at - first) % every == 0
            ],
            won=self._list_won(last),
            refunded=self._list_refunded(last),
            first_position=first,
        )

    def _choose_first(self, inputs: Mapping[str, Any], span: ForecastSpan, *, last: int) -> int:
        """Give the position that bids of a span have to be read from on.

        It is the one that is named where that lies before the log's beginning, as it may.
        """
        first = self._find_first(span, last=last)
        named = int(inputs["first_position"])
        return named if 0 < self._begin >= max(first, named) else first

    def _find_first(self, span: ForecastSpan, *, last: int) -> int:
        """Give the position of the first beat in whose slot bids of a span are decided."""
        at = bisect_left(self._slots, (span.decided_from,))
        return min(self._slots[at][1] if at < len(self._slots) else last + 1, last + 1)


def _refuse(rule: str | None) -> WrongPrices | None:
    """Find what no erratum excuses: no log can say this amount."""
    return WrongPrices(rule, {"prices": _UNSPEAKABLE}) if rule else None


def _measure_in_force(
    engine: Engine, logged: PricesSolved | RatesPosted, follows: PricesSolved | RatesPosted
) -> dict[str, float]:
    """Give how far prices of cells are off after an event from those after the one that follows."""
    one, other = engine.replica(), engine.replica()
    try:
        one.transition(logged)
        other.transition(follows)
    except _NOTHING:
        # The replay ends here.
        return {"compute_price": _UNSPEAKABLE}
    return measure_prices(one.prices(), other.prices())


def _number(inputs: Mapping[str, Any], name: str) -> int:
    value = inputs.get(name, 0)
    return int(value) if isinstance(value, int) else 0
