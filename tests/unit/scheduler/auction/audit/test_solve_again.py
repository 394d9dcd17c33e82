"""Solved prices are solved again: a price made for one bid is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from scheduler.auction import ChainEntry, Engine, ZoneRules
from scheduler.auction.audit.solve_choices import SolveChoices
from scheduler.auction.audit.transcripts import verify_transcript, write_transcript_lines
from scheduler.auction.audit.verify import Verification, verify
from scheduler.auction.log import events
from scheduler.auction.log.chain import seal
from scheduler.auction.prices import KnownBids, Settings, solve_prices
from scheduler.auction.prices.solve import SOLVER, choose_seed
from tests.unit.scheduler.auction.builders import node, task

QUICK = Settings(futures=2, iterations=6)
RULES = ZoneRules(horizon_slots=6, settings=asdict(QUICK))


def solve(engine: Engine, *, slot: int, **changes: Any) -> events.PricesSolved:
    """Solve as the market does, from the log up to the engine's position."""
    inputs = {"past_starts": [], "first_position": 1, "last_position": engine.position, "every": 1}
    return solve_prices(
        engine.replica(),
        KnownBids(
            slot=slot,
            last_slot=engine.horizon.last_slot,
            day_start=1,
            today=[bid.task for bid in BIDS],
            past_days=[],
            won={held.task_id for held in engine.reservations()},
            given=inputs,
        ),
        seed=choose_seed(engine, slot=slot),
        settings=QUICK,
        salt="secret",
        **changes,
    )


BIDS = [
    events.BidArrived(
        task(f"t{i}", bid=40.0 + 3 * i, arrival_slot=1, owner=f"o{i}"), 0, f"salt {i}"
    )
    for i in range(8)
]
LAST = events.BidArrived(task("last", bid=5_000.0, arrival_slot=1), 0, "salt")


def write(forge: Callable[[events.PricesSolved], events.PricesSolved]) -> list[ChainEntry]:
    """A log in which prices are solved, and a bid of great worth comes after."""
    engine = Engine(RULES)
    log = [engine.apply(events.NodeJoined(node(ask=10.0)))]
    log.append(engine.apply(events.BidsReceived(tuple((b.task.id, seal(b)) for b in BIDS))))
    log += [engine.apply(bid) for bid in BIDS]
    solved = solve(engine, slot=1)
    # More happens before the prices come into force.
    log.append(engine.apply(events.NodeJoined(node("other", ask=11.0))))
    log.append(engine.apply(forge(solved)))
    log.append(engine.apply(events.BidsReceived(((LAST.task.id, seal(LAST)),))))
    log.append(engine.apply(LAST))
    return log


def check(log: list[ChainEntry]) -> Verification:
    return verify(log, rules=RULES)


def test_an_honest_solve_comes_to_the_logged_prices() -> None:
    log = write(lambda solved: solved)
    found = check(log)
    assert (found.ok, found.solved_again, found.taken_as_logged) == (True, 1, 0)
    lines = list(write_transcript_lines(log, rules=RULES))
    assert verify_transcript(lines).solved_again == 1


def dear(solved: events.PricesSolved) -> events.PricesSolved:
    """Prices just below the bid that the house has seen."""
    return replace(solved, compute_price={"n": (600.0,) * 6})


FORGERIES = {
    "another compute_price": dear,
    "another memory_price": lambda s: replace(s, memory_price={"n": (1e-3,) * 6}),
    "another usual_rates": lambda s: replace(s, usual_rates={"g": (3.0,)}),
    "does not follow from the log": lambda s: replace(s, seed=s.seed + 1),
    "the inputs are others": lambda s: replace(s, inputs={**s.inputs, "bids_today": 9}),
    "bids of its slots were left out": lambda s: replace(
        s, inputs={**s.inputs, "first_position": 6}
    ),
    "a state that the log does not have": lambda s: replace(s, inputs={**s.inputs, "position": 99}),
    "this program solves as": lambda s: replace(s, inputs={**s.inputs, "solver": 10**6}),
    "cannot be solved again": lambda s: replace(
        s, inputs={name: value for name, value in s.inputs.items() if name != "slot"}
    ),
}
#: Solves that come to their prices when run again, from what the market chose to suit a bid.
CHOSEN: dict[str, dict[str, Any]] = {
    "the settings of the solve are not": {"settings": replace(QUICK, iterations=7)},
    "which was not the next": {"slot": 2},
    "the last slot of the solve": {"last_slot": 4},
    "which is no day": {"day_start": 0},
    "the past days of the solve": {"past_starts": [-3]},
    "more or fewer of the bids": {"every": 2},
}


@pytest.mark.parametrize("problem", FORGERIES)
def test_prices_that_the_bids_before_do_not_lead_to_are_found(problem: str) -> None:
    log = write(FORGERIES[problem])
    solved = next(entry for entry in log if isinstance(entry.event, events.PricesSolved))
    found = check(log)
    assert (found.ok, found.position) == (False, solved.position)
    assert found.problem is not None
    assert problem in found.problem


@pytest.mark.parametrize("problem", CHOSEN)
def test_a_solve_made_from_what_the_log_does_not_lead_to_is_found(problem: str) -> None:
    chosen = CHOSEN[problem]

    def forge(solved: events.PricesSolved) -> events.PricesSolved:
        told = {
            name: asdict(value) if isinstance(value, Settings) else value
            for name, value in chosen.items()
        }
        return replace(solved, inputs={**solved.inputs, **told})

    found = check(write(forge))
    assert (found.ok, found.solved_again) == (False, 0)
    assert problem in (found.problem or "")


def excuse(log: list[ChainEntry], rule: str, off_by: dict[str, float]) -> list[ChainEntry]:
    """The log with an erratum that names its solve."""
    engine = Engine(RULES)
    for entry in log:
        engine.apply(entry.event)
    solved = next(entry for entry in log if isinstance(entry.event, events.PricesSolved))
    erratum = events.ErratumNoted(solved.position, "It was slow.", rule, off_by)
    return [*log, engine.apply(erratum)]


@pytest.mark.parametrize("told", [{"slot": 2}, {"position": 99}, {"settings": None}, {}])
def test_an_erratum_excuses_a_forged_price_only_with_its_size(told: dict[str, Any]) -> None:
    """However what the solve was made of is named, as a small fault too, the price shows."""
    log = write(lambda s: replace(dear(s), inputs={**s.inputs, **told}))
    honest = write(lambda s: s)[-3].event
    assert isinstance(honest, events.PricesSolved)
    size = 600.0 - min(honest.compute_price["n"])
    found = check(log)
    assert found.problem is not None
    assert found.off_by is not None
    assert found.off_by["compute_price"] == pytest.approx(size, abs=5.0)
    small = {**found.off_by, "compute_price": 0.01}
    for rule, off_by in (
        (found.problem, {}),
        (found.problem, small),
        ("the worker was slow", dict(found.off_by)),
    ):
        assert check(excuse(log, rule, off_by)) == found
    named = excuse(log, found.problem, dict(found.off_by))
    again = check(named)
    assert again.ok
    [known] = again.known_faults
    assert (known.off_by, known.found, known.measured) == (found.off_by, found.problem, True)
    assert f"compute_price {found.off_by['compute_price']:.6g}" in str(known)


@pytest.mark.parametrize(
    "leave",
    [
        lambda s: replace(s, compute_price={"n": s.compute_price["n"][:1]}),
        lambda s: replace(s, first_slot=99),
        lambda s: replace(s, compute_price={}),
    ],
)
def test_prices_that_are_left_in_force_count_in_an_erratum(
    leave: Callable[[events.PricesSolved], events.PricesSolved],
) -> None:
    """An event of one right slot, or of none on sale, leaves a price of 600 where it was."""
    log = write(dear)
    first = check(log)
    log = excuse(log, first.problem or "", dict(first.off_by or {}))
    engine = Engine(RULES)
    for entry in log:
        engine.apply(entry.event)
    log.append(engine.apply(leave(solve(engine, slot=1))))
    found = check(log)
    assert found.position == engine.position
    assert found.off_by is not None
    assert found.off_by["compute_price"] > 500.0

    def name(off_by: dict[str, float]) -> Verification:
        erratum = events.ErratumNoted(engine.position, "Slow.", found.problem or "", off_by)
        return check([*log, engine.replica().apply(erratum)])

    assert name({}) == found
    assert name(dict(found.off_by)).ok


def test_bids_of_seats_that_arrive_later_do_not_refute_a_log_a_day_later() -> None:
    engine = Engine(RULES)
    log = [engine.apply(events.NodeJoined(node(ask=10.0)))]

    def decide(bid: events.BidArrived) -> None:
        log.append(engine.apply(events.BidsReceived(((bid.task.id, seal(bid)),))))
        log.append(engine.apply(bid))

    # Decided in slot 0, and so not of a day that begins with slot 3, in which it arrives.
    decide(events.BidArrived(task("seat", bid=90.0, arrival_slot=3), 0, "salt"))
    log.append(engine.apply(events.SlotAdvanced(2)))
    first = engine.position + 1
    today = events.BidArrived(task("today", bid=90.0, arrival_slot=3), 2, "salt")
    decide(today)
    log.append(engine.apply(events.SlotAdvanced(4)))
    inputs = {"past_starts": [], "last_position": engine.position, "every": 1}

    def solve_from(position: int, seen: list[events.BidArrived]) -> Verification:
        known = KnownBids(
            slot=5,
            last_slot=engine.horizon.last_slot,
            day_start=3,
            today=[bid.task for bid in seen],
            past_days=[],
            won={held.task_id for held in engine.reservations()},
            given={**inputs, "first_position": position},
        )
        state, seed = engine.replica(), choose_seed(engine, slot=5)
        solved = solve_prices(state, known, seed=seed, settings=QUICK, salt="secret")
        return check([*log, engine.replica().apply(solved)])

    found = solve_from(first, [today])
    assert (found.ok, found.problem, found.solved_again) == (True, None, 1)
    assert "bids of its slots were left out" in (solve_from(first + 2, []).problem or "")


def test_an_erratum_of_a_log_without_bids_says_that_its_amounts_are_not_checked() -> None:
    log = write(lambda s: replace(dear(s), inputs={**s.inputs, "slot": 2}))
    rule = check(log).problem
    named = excuse(log, rule or "", {"compute_price": 580.0})
    lines = write_transcript_lines(named, rules=RULES, shows=lambda _: False)
    found = verify_transcript(lines)
    assert found.ok
    [known] = found.known_faults
    assert (known.off_by, known.measured) == ({"compute_price": 580.0}, False)
    assert "not worked out again without bids" in str(known)


def test_a_day_has_the_length_that_the_log_showed_first() -> None:
    state = Engine(ZoneRules(horizon_slots=6, first_slot=0, settings=asdict(QUICK)))
    state.transition(events.SlotAdvanced(29))
    choices = SolveChoices()

    def look(day_start: int, past_starts: list[int]) -> str | None:
        inputs = {
            "settings": asdict(QUICK),
            "slot": 30,
            "last_slot": 34,
            "day_start": day_start,
            "past_starts": past_starts,
            "first_position": 1,
            "last_position": 9,
            "every": 1,
        }
        seed = choose_seed(state, slot=30)
        return choices.find_problem(inputs, seed=seed, state=state, taken_at=state.horizon)

    assert look(20, [10]) is None
    assert look(20, [10]) is None
    for start, past in ((25, [20, 15]), (1, []), (20, []), (20, [11])):
        assert look(start, past) is not None


def test_prices_do_not_come_into_force_slots_after_they_were_solved() -> None:
    engine = Engine(RULES)
    log = [engine.apply(events.NodeJoined(node(ask=10.0)))]
    log.append(engine.apply(events.BidsReceived(tuple((b.task.id, seal(b)) for b in BIDS))))
    log += [engine.apply(bid) for bid in BIDS]
    solved = solve(engine, slot=1)
    log.append(engine.apply(events.SlotAdvanced(1)))
    assert check([*log, *late(engine, solved)]).ok
    log.append(engine.apply(events.SlotAdvanced(2)))
    found = check([*log, *late(engine, solved)])
    assert (found.ok, found.problem) == (False, "prices for slot 1 came 2 slots late")


def late(engine: Engine, solved: events.PricesSolved) -> list[ChainEntry]:
    return [engine.replica().apply(solved)]


def test_prices_of_another_solver_are_not_taken() -> None:
    found = check(write(lambda s: replace(dear(s), inputs={**s.inputs, "solver": SOLVER - 1})))
    assert not found.ok
    assert found.problem == f"prices of solver {SOLVER - 1}: this program solves as {SOLVER}"


@pytest.mark.parametrize("problem", [*CHOSEN, "the seed of the solve"])
def test_what_a_solve_is_made_of_is_checked_where_bids_are_left_out_too(problem: str) -> None:
    def forge(solved: events.PricesSolved) -> events.PricesSolved:
        if problem not in CHOSEN:
            return replace(solved, seed=solved.seed + 1)
        told = {
            name: asdict(value) if isinstance(value, Settings) else value
            for name, value in CHOSEN[problem].items()
        }
        return replace(solved, inputs={**solved.inputs, **told})

    lines = write_transcript_lines(write(forge), rules=RULES, shows=lambda _: False)
    found = verify_transcript(lines)
    assert (found.ok, found.taken_as_logged) == (False, 0)
    assert problem in (found.problem or "")


def test_a_log_without_bids_says_how_many_solves_it_takes_as_logged() -> None:
    lines = write_transcript_lines(write(dear), rules=RULES, shows=lambda _: False)
    found = verify_transcript(lines)
    assert (found.ok, found.solved_again, found.taken_as_logged) == (True, 0, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data | {"note": "x"},
        lambda data: data | {"position": float(data["position"])},
        lambda data: data | {"position": str(data["position"])},
        lambda data: data | {"event": data["event"] | {"note": "x"}},
        lambda data: data | {"event": data["event"] | {"slot": "0"}},
        lambda data: data | {"outcome": data["outcome"] | {"note": "x"}},
    ],
)
@pytest.mark.parametrize("shows", [None, lambda _: False])
def test_a_line_that_says_more_or_otherwise_than_what_is_hashed_is_found(
    change: Callable[[dict[str, Any]], dict[str, Any]], shows: Callable[[ChainEntry], bool] | None
) -> None:
    *lines, last = write_transcript_lines(write(lambda solved: solved), rules=RULES, shows=shows)
    found = verify_transcript([*lines, json.dumps(change(json.loads(last)))])
    assert (found.ok, found.position) == (False, len(lines))
    assert found.problem == f"line {len(lines) + 1} says something that its hash does not cover"


def test_last_digits_of_another_machine_are_let_pass() -> None:
    def off(solved: events.PricesSolved) -> events.PricesSolved:
        moved = {
            name: tuple(price * (1 + 1e-9) for price in row)
            for name, row in solved.compute_price.items()
        }
        return replace(solved, compute_price=moved)

    assert check(write(off)).solved_again == 1
