"""Solved prices are solved again: a price made for one bid is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from scheduler.auction import ChainEntry, Engine, ZoneRules
from scheduler.auction.audit.transcripts import transcript_lines, verify_transcript
from scheduler.auction.audit.verify import Verification, verify
from scheduler.auction.log import events
from scheduler.auction.log.chain import seal
from scheduler.auction.prices import KnownBids, Settings, solve_prices
from scheduler.auction.prices.solve import choose_seed
from tests.unit.scheduler.auction.builders import node, task

RULES = ZoneRules(horizon_slots=6, version=2)
QUICK = Settings(futures=2, iterations=6)


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
            given=inputs,
        ),
        seed=choose_seed(engine, slot=slot),
        settings=QUICK,
        salt="secret",
        **changes,
    )


BIDS = [
    events.BidArrived(
        task(f"t{i}", bid=40.0 + 3 * i, arrival_slot=1, owner=f"o{i}"), 0, f"salt {i}", 2
    )
    for i in range(8)
]
LAST = events.BidArrived(task("last", bid=5_000.0, arrival_slot=1), 0, "salt", 2)


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
    lines = list(transcript_lines(log, rules=RULES))
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
    "cannot be solved again": lambda s: replace(s, inputs={**s.inputs, "settings": {"x": 1}}),
}


@pytest.mark.parametrize("problem", FORGERIES)
def test_prices_that_the_bids_before_do_not_lead_to_are_found(problem: str) -> None:
    log = write(FORGERIES[problem])
    solved = next(entry for entry in log if isinstance(entry.event, events.PricesSolved))
    found = check(log)
    assert (found.ok, found.position) == (False, solved.position)
    assert found.problem is not None
    assert problem in found.problem


def test_last_digits_of_another_machine_are_let_pass() -> None:
    def off(solved: events.PricesSolved) -> events.PricesSolved:
        moved = {
            name: tuple(price * (1 + 1e-9) for price in row)
            for name, row in solved.compute_price.items()
        }
        return replace(solved, compute_price=moved)

    assert check(write(off)).solved_again == 1


def test_what_an_earlier_solver_made_is_taken_as_logged_and_counted() -> None:
    found = check(write(lambda s: replace(s, inputs={**s.inputs, "solver": 0})))
    assert (found.ok, found.solved_again, found.taken_as_logged) == (True, 0, 1)
