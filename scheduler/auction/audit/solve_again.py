"""Solving again: logged prices and rates are held against what the log's own bids lead to.

A replay takes solved prices as they stand, so a market that sees a bid could log prices just below
it. Here the solve is run again: on the state at its position, from the log's bids in its slots,
with the seed that follows from the log. What a solve names must follow from the log as well
(``solve_choices``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from scheduler.auction.audit.faults import WrongPrices, measure_difference, measure_prices
from scheduler.auction.audit.rates_again import find_rates_problem, make_rates_of_place
from scheduler.auction.audit.solve_choices import SolveChoices
from scheduler.auction.engine.engine import Engine
from scheduler.auction.log.events import (
    BidArrived,
    CellsReleased,
    Event,
    PricesSolved,
    RatesPosted,
    SlotAdvanced,
)
from scheduler.auction.log.limits import MOST_MONEY
from scheduler.auction.log.outcomes import Outcome
from scheduler.auction.prices.forecast_span import (
    PAST_DAYS,
    ForecastSpan,
    choose_span,
    find_sampling,
)
from scheduler.auction.prices.solve import (
    SOLVER,
    KnownBids,
    Settings,
    choose_seed,
    read_settings,
    solve_prices,
)
from scheduler.types import Decision, NodeRate, Task

#: Entries by which a solve may come into force after the one it was made at.
MOST_ENTRIES_LATE = 20_000
#: Largest difference of a price, as a share of the largest price of its kind: another
#: machine's arithmetic may end in other last digits. On one machine there is none.
TOLERANCE = 1e-6
#: An amount that no log can say, so no erratum excuses it.
_UNSPEAKABLE = 2.0 * MOST_MONEY


_Entry = TypeVar("_Entry")
#: Gives what the solve of an entry names that it was made of, of other entries ``None``.
ListInputs = Callable[[_Entry], Mapping[str, Any] | None]


class BidsLeftOut(ValueError):
    """Other bids are named than prices have to be made of; the text is the same everywhere."""


class SolveAudit:
    """Runs the solves of a log again as it is replayed.

    Parameters
    ----------
    begin : int
        Position of the state that the log builds on; bids up to there are not known.
    wanted : iterable of int, optional
        Positions that solves name, where they are known before the log is read; ``read_ahead``
        finds them otherwise.
    knows_bids : bool
        Where not, solves are looked at for what they are made of, and not run.
    """

    def __init__(self, begin: int, *, wanted: Iterable[int] = (), knows_bids: bool = True) -> None:
        self._begin = begin
        self._knows_bids = knows_bids
        self._wanted = set(wanted)
        self._states: dict[int, Engine] = {}
        #: Positions of bids in rising order, the bids, and the slot in which each was decided.
        self._positions: list[int] = []
        self._bids: list[Task] = []
        self._decided: list[int] = []
        self._won: set[str] = set()
        #: Positions at which the price of those that won went back.
        self._refunded: dict[str, int] = {}
        self._choices = SolveChoices()
        #: Solves and posted rates that came to what is logged.
        self.solved_again = 0
        #: Those from bids that are not known: left out, or from before the log begins.
        self.taken_as_logged = 0

    def read_ahead(
        self, entries: Iterable[_Entry], *, list_inputs: ListInputs[_Entry]
    ) -> Iterator[_Entry]:
        """Hand on entries, having looked at those that follow for the solves they hold."""
        waiting: deque[_Entry] = deque()
        for entry in entries:
            waiting.append(entry)
            inputs = list_inputs(entry)
            if inputs is not None:
                self._wanted.add(_number(inputs, "position"))
            if len(waiting) > MOST_ENTRIES_LATE:
                yield waiting.popleft()
        yield from waiting

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
        if position in self._wanted:
            self._states[position] = engine.replica()
        match event:
            case BidArrived(task=task):
                self._positions.append(position + 1)
                self._bids.append(task)
                self._decided.append(engine.horizon.first_slot)
            case CellsReleased(task_id=task_id, refunded=True):
                self._refunded.setdefault(task_id, position + 1)
            case PricesSolved():
                rule = self._check_solve(engine, event)
                return WrongPrices(rule, self._measure_solve(engine, event)) if rule else None
            case RatesPosted():
                rule = self._check_rates(engine, event)
                return WrongPrices(rule, self._measure_rates(engine, event)) if rule else None
            case _:
                pass
        return None

    def note_outcome(self, outcome: Outcome) -> None:
        """Note what the next event led to, once it was found to be so."""
        if isinstance(outcome, Decision) and outcome.admitted:
            self._won.add(outcome.task_id)

    def _list_won(self, position: int) -> set[str]:
        """Give the bids that had won and were not refunded at a position, and later ones."""
        return self._won - {name for name, at in self._refunded.items() if at <= position}

    def _check_solve(self, engine: Engine, event: PricesSolved) -> str | None:
        inputs = event.inputs
        if 0 < self._begin >= _number(inputs, "first_position"):
            self.taken_as_logged += 1
            return None
        solver = _number(inputs, "solver")
        if solver != SOLVER:
            return f"prices of solver {solver}: this program solves as {SOLVER}"
        position = _number(inputs, "position")
        state = self._states.get(position)
        # Prices come into force in the order in which they were solved.
        self._states = {at: kept for at, kept in self._states.items() if at >= position}
        if state is None:
            return "prices solved on a state that the log does not have"
        try:
            problem = self._choices.find_problem(
                inputs, seed=event.seed, state=state, taken_at=engine.horizon
            )
            if problem is not None:
                return problem
            if not self._knows_bids:
                self.taken_as_logged += 1
                return None
            found = self._solve(state.replica(), event)
        except BidsLeftOut as error:
            return f"the prices cannot be solved again: {error}"
        except (KeyError, TypeError, ValueError):
            return "the prices cannot be solved again: what they name is nothing to solve"
        self.solved_again += 1
        return _compare(event, found)

    def _check_rates(self, engine: Engine, event: RatesPosted) -> str | None:
        if 0 < self._begin >= _number(event.inputs, "first_position"):
            self.taken_as_logged += 1
            return None
        solver = _number(event.inputs, "solver")
        if solver != SOLVER:
            return f"rates of solver {solver}: this program makes them as {SOLVER}"
        try:
            last = _number(event.inputs, "last_position")
            problem = find_rates_problem(
                engine,
                event,
                find_days=self._find_days if self._knows_bids else None,
                won=self._list_won(last),
            )
        except BidsLeftOut as error:
            return f"the rates cannot be made again: {error}"
        except (KeyError, TypeError, ValueError):
            return "the rates cannot be made again: what they name is nothing to make them of"
        if self._knows_bids:
            self.solved_again += problem is None
        else:
            self.taken_as_logged += problem is None
        return problem

    def _measure_solve(self, engine: Engine, event: PricesSolved) -> dict[str, float] | None:
        """Give how far prices are from those that a solve at their place would have come to.

        Whatever an entry names that it was made of has no part in it.
        """
        if not self._knows_bids or self._begin > 0:
            return None
        rules, slot = engine.rules, engine.horizon.first_slot + 1
        span = choose_span(
            day_slots=self._choices.day_slots,
            began=rules.first_slot + 1,
            slot=slot,
            last_slot=engine.horizon.last_slot,
            past_days=int(rules.settings.get("past_days", PAST_DAYS)),
        )
        inputs = {
            "position": engine.position,
            "slot": slot,
            "last_slot": span.last_slot,
            "day_start": span.day_start,
            "settings": asdict(read_settings(rules.settings)),
            **self._name_bids(span, last=engine.position),
        }
        follows = self._solve(engine.replica(), replace(event, inputs=inputs))
        found = _measure_in_force(engine, event, follows)
        if event.own_asks != follows.own_asks:
            found["own_asks"] = 1.0
        usual_rates = measure_difference(event.usual_rates, follows.usual_rates)
        return found | ({"usual_rates": usual_rates} if usual_rates else {})

    def _measure_rates(self, engine: Engine, event: RatesPosted) -> dict[str, float] | None:
        if not self._knows_bids or self._begin > 0:
            return None
        won = self._list_won(engine.position)
        name_bids = partial(self._name_bids, last=engine.position)
        try:
            follows = make_rates_of_place(
                engine, event, name_bids=name_bids, find_days=self._find_days, won=won
            )
        except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError):
            return {"rates": _UNSPEAKABLE}
        furthest = measure_difference(_list_amounts(event.rates), _list_amounts(follows.rates))
        found = _measure_in_force(engine, event, follows)
        return found | ({"rates": furthest} if furthest else {})

    def _name_bids(self, span: ForecastSpan, *, last: int) -> dict[str, Any]:
        """Give the positions that hold the bids of a span, as an event names them."""
        begin = bisect_left(self._decided, span.decided_from)
        first = self._positions[begin] if begin < len(self._positions) else last + 1
        return {
            "past_starts": list(span.past_starts),
            "first_position": first,
            "last_position": last,
            "every": find_sampling(first=first, last=last),
        }

    def _find_days(self, inputs: Mapping[str, Any], span: ForecastSpan) -> list[list[Task]]:
        """Give the bids of a span's past days, from the positions that an event names.

        Raises
        ------
        BidsLeftOut
            If more or fewer positions are named than hold them.
        """
        first, last = int(inputs["first_position"]), int(inputs["last_position"])
        if int(inputs["every"]) != find_sampling(first=first, last=last):
            raise BidsLeftOut("more or fewer of the bids were left out than of so long a log")
        after = bisect_right(self._positions, last)
        if any(task.arrival_slot < span.day_start for task in self._bids[after:]):
            raise BidsLeftOut("bids of its days were left out")
        seen = self._select(inputs, span)
        return _sort_by_day(seen, span.past_starts, length=span.length)

    def _solve(self, engine: Engine, event: PricesSolved) -> PricesSolved:
        inputs = event.inputs
        if int(inputs["last_position"]) != int(inputs["position"]):
            raise BidsLeftOut("the bids do not end where the state does")
        slot, day_start, last_slot = (
            int(inputs[name]) for name in ("slot", "day_start", "last_slot")
        )
        if slot - 1 > engine.horizon.first_slot:
            engine.transition(SlotAdvanced(slot=slot - 1))
        past_starts = tuple(int(start) for start in inputs["past_starts"])
        span = ForecastSpan(day_start, slot, last_slot, past_starts)
        seen = self._select(inputs, span)
        return solve_prices(
            engine,
            KnownBids(
                slot=slot,
                last_slot=last_slot,
                day_start=day_start,
                today=[task for task in seen if task.arrival_slot >= day_start],
                past_days=_sort_by_day(seen, past_starts, length=span.length),
                each=float(inputs["every"]),
                given={
                    name: inputs[name]
                    for name in ("past_starts", "first_position", "last_position", "every")
                },
                won=self._list_won(int(inputs["last_position"])),
            ),
            seed=choose_seed(engine, slot=slot),
            settings=Settings(**inputs["settings"]),
            salt=event.salt,
        )

    def _select(self, inputs: Mapping[str, Any], span: ForecastSpan) -> list[Task]:
        """Give the bids that a solve was made of.

        Raises
        ------
        BidsLeftOut
            If bids that were decided in its slots stand before the first position it names.
        """
        first, last, every = (
            int(inputs[name]) for name in ("first_position", "last_position", "every")
        )
        begin = bisect_left(self._positions, first)
        end = bisect_right(self._positions, last)
        if begin > bisect_left(self._decided, span.decided_from):
            raise BidsLeftOut("bids of its slots were left out")
        return [
            task
            for at, task in zip(self._positions[begin:end], self._bids[begin:end], strict=True)
            if (at - first) % every == 0
        ]


def _sort_by_day(seen: Sequence[Task], starts: Sequence[int], *, length: int) -> list[list[Task]]:
    """Give the bids of each day, slots counted from its start."""
    return [
        [_move_back(task, start) for task in seen if start <= task.arrival_slot < start + length]
        for start in starts
    ]


def _move_back(task: Task, slots: int) -> Task:
    return replace(
        task, arrival_slot=task.arrival_slot - slots, deadline_slot=task.deadline_slot - slots
    )


def _compare(logged: PricesSolved, found: PricesSolved) -> str | None:
    """Say which part of an event is not what the solve comes to."""
    for name in ("compute_price", "memory_price", "sample_worth", "usual_rates"):
        if not _is_close(getattr(logged, name), getattr(found, name)):
            return f"solved again, the bids before lead to another {name}"
    if logged.first_slot != found.first_slot or logged.own_asks != found.own_asks:
        return "solved again, the prices are for other slots or nodes"
    shown = {name: value for name, value in found.inputs.items() if name != "forecast_weight"}
    if any(logged.inputs.get(name) != value for name, value in shown.items()):
        return "solved again, the inputs are others"
    return None


def _list_amounts(rates: Mapping[str, NodeRate]) -> dict[str, tuple[float, ...]]:
    return {name: (rate.ask, rate.floor, *rate.by_block) for name, rate in rates.items()}


def _measure_in_force(
    engine: Engine, logged: PricesSolved | RatesPosted, follows: PricesSolved | RatesPosted
) -> dict[str, float]:
    """Give how far prices of cells are off after an event from those after the one that follows."""
    one, other = engine.replica(), engine.replica()
    try:
        one.transition(logged)
        other.transition(follows)
    except ValueError:
        # The replay ends here.
        return {"compute_price": _UNSPEAKABLE}
    return measure_prices(one.prices(), other.prices())


def _is_close(
    logged: Mapping[str, tuple[float, ...]], found: Mapping[str, tuple[float, ...]]
) -> bool:
    if logged.keys() != found.keys():
        return False
    if any(len(logged[name]) != len(found[name]) for name in logged):
        return False
    if not logged:
        return True
    left = np.concatenate([np.array(logged[name], np.float64) for name in logged])
    right = np.concatenate([np.array(found[name], np.float64) for name in logged])
    most = float(np.max(np.abs(right), initial=0.0))
    return bool(np.all(np.abs(left - right) <= TOLERANCE * most))


def _number(inputs: Mapping[str, Any], name: str) -> int:
    value = inputs.get(name, 0)
    return int(value) if isinstance(value, int) else 0
