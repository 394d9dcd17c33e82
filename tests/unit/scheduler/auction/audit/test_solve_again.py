"""Solved prices are solved again: a price made for one bid is found."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from scheduler.auction import ChainEntry, Engine, ZoneRules
from scheduler.auction.audit.transcripts import verify_transcript, write_transcript_lines
from scheduler.auction.audit.verify import Verification, verify
from scheduler.auction.log import events
from scheduler.auction.log.chain import chain_entry, seal
from scheduler.auction.log.outcomes import GridChange
from scheduler.auction.prices import Settings
from scheduler.auction.prices.beats import SeenBids, solve_for_beat
from scheduler.auction.prices.forecast_span import ForecastSpan, choose_span
from scheduler.auction.prices.solve import SOLVER
from scheduler.public_log import days
from scheduler.public_log.days import commit_secret
from scheduler.public_log.transcript import check_transcript
from scheduler.types import Beat, Decision, Task
from tests.unit.scheduler.auction.builders import list_outcomes, node, task

QUICK = Settings(futures=2, iterations=6)
RULES = ZoneRules(horizon_slots=6, day_slots=10, beats_per_slot=2, settings=asdict(QUICK))
BIDS = [
    events.BidArrived(
        task(f"t{i}", bid=40.0 + 3 * i, arrival_slot=1, owner=f"o{i}"), 0, f"salt {i}"
    )
    for i in range(8)
]
LAST = events.BidArrived(task("last", bid=5_000.0, arrival_slot=1), 0, "salt")


def solve(engine: Engine, log: list[ChainEntry]) -> events.PricesSolved:
    """Solve as the market does, from the log up to the engine's position."""
    won = frozenset(held.task_id for held in engine.reservations())
    tasks = [task for task in list_outcomes(log) if task.id != LAST.task.id]
    return solve_for_beat(engine, load=lambda _: SeenBids(tasks=tasks, won=won))


def write(forge: Callable[[events.PricesSolved], events.PricesSolved]) -> list[ChainEntry]:
    """A log in which prices are solved, and a bid of great worth comes after."""
    engine = Engine(RULES)
    log = [engine.apply(events.NodeJoined(node(ask=10.0)))]
    log.append(engine.apply(events.BidsReceived(tuple((b.task.id, seal(b)) for b in BIDS))))
    log += [engine.apply(bid) for bid in BIDS]
    log.append(engine.apply(events.SlotAdvanced(0)))
    solved = solve(engine, log)
    # More happens before the prices come into force.
    log.append(engine.apply(events.NodeJoined(node("other", ask=11.0))))
    log.append(engine.apply(events.SlotAdvanced(0, 1)))
    log.append(engine.apply(forge(solved)))
    log.append(engine.apply(events.BidsReceived(((LAST.task.id, seal(LAST)),))))
    log.append(engine.apply(LAST))
    return log


def check(log: list[ChainEntry]) -> Verification:
    return verify(log, rules=RULES)


@pytest.mark.parametrize(
    ("forge", "problem"),
    [
        (lambda s: s, None),
        (lambda s: replace(s, seed=s.seed + 1), "the seed of the solve does not follow"),
        (lambda s: replace(s, inputs={**s.inputs, "beat": [1, 0]}), "are for another beat: [1, 0]"),
        (lambda s: replace(s, inputs={**s.inputs, "solver": 1}), "prices of solver 1"),
        (lambda s: replace(s, inputs={}), "prices of solver None"),
    ],
)
def test_a_log_that_begins_between_two_beats_has_the_seed_of_its_first_solve_checked(
    forge: Callable[[events.PricesSolved], events.PricesSolved], problem: str | None
) -> None:
    """As from a snapshot, or with ``auction_verify --since-last``."""
    engine, log = Engine(RULES), list[ChainEntry]()
    go_on(engine, log, events.NodeJoined(node(ask=10.0)), events.SlotAdvanced(0))
    solved, begin = solve(engine, log), engine.snapshot()
    go_on(engine, log, events.SlotAdvanced(0, 1), forge(solved))
    found = verify_transcript(write_transcript_lines(log[2:], snapshot=begin))
    if problem is None:
        assert (found.problem, found.taken_as_logged) == (None, 1)
    else:
        assert problem in (found.problem or "")


def test_no_verifier_takes_a_beat_that_a_slot_does_not_have() -> None:
    """Each would be another seed."""
    engine = Engine(RULES)
    log = [engine.apply(events.SlotAdvanced(0)), engine.apply(events.SlotAdvanced(0, 2))]
    lines = list(write_transcript_lines(log, rules=RULES))
    for found in (verify_transcript(lines), check_transcript(lines)):
        assert (found.ok, found.position) == (False, 2)
        assert "slot 0 has 2 beats, and not number 3" in (found.problem or "")


@pytest.mark.parametrize(("own", "counted"), [(True, 2), (False, 1)])
def test_a_market_is_not_its_own_witness(own: bool, counted: int) -> None:
    """Of days 0 and 1, a day that it signed itself is one without a witness."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    named = key.public_key().public_bytes_raw().hex()
    engine, log = Engine(RULES), list[ChainEntry]()
    promised = events.DayPromised(1, "z", commit_secret("s"), named if own else "bb" * 32, named)
    go_on(engine, log, events.SlotAdvanced(0), promised, events.SlotAdvanced(10))
    promise = engine.day.promise
    assert promise is not None
    go_on(engine, log, events.DayOpened(1, "s", days.sign_promise(promise, sign=key.sign)))
    found = check(log)
    assert (found.problem, found.unwitnessed) == (None, counted)


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
    "this program solves as": lambda s: replace(s, inputs={**s.inputs, "solver": 10**6}),
    "cannot be solved again": lambda s: replace(
        s, inputs={name: value for name, value in s.inputs.items() if name != "first_position"}
    ),
}
#: Solves that come to their prices when run again, from what the market chose to suit a bid.
CHOSEN: dict[str, dict[str, Any]] = {
    "on the state of the beat before": {"position": 12},
    "for another beat": {"beat": [1, 0]},
    "the settings of the solve": {"settings": replace(QUICK, iterations=7)},
    "the slot of the solve": {"slot": 2},
    "the last_slot of the solve": {"last_slot": 4},
    "the day_start of the solve": {"day_start": 0},
    "the past_starts of the solve": {"past_starts": [-3]},
    "the every of the solve": {"every": 2},
    "the first_position of the solve": {"first_position": 6},
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
        if isinstance(entry.event, events.PricesSolved):
            following = solve(engine, log)
    log.append(engine.apply(events.SlotAdvanced(1)))
    log.append(engine.apply(leave(following)))
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
    first = engine.position
    today = events.BidArrived(task("today", bid=90.0, arrival_slot=3), 2, "salt")
    decide(today)
    log.append(engine.apply(events.SlotAdvanced(12)))
    state = engine.replica()
    log.append(engine.apply(events.SlotAdvanced(12, 1)))
    decisions = [entry.outcome for entry in log if isinstance(entry.outcome, Decision)]
    won = {decision.task_id for decision in decisions if decision.admitted}

    def solve_from(position: int, tasks: list[Task]) -> Verification:
        seen = SeenBids(tasks=tasks, won=won, first_position=position)
        solved = solve_for_beat(state, load=lambda _: seen)
        assert solved.inputs["day_start"] == 3
        return check([*log, engine.replica().apply(solved)])

    found = solve_from(first, [task for task in list_outcomes(log) if task.id == "today"])
    assert (found.ok, found.problem, found.solved_again) == (True, None, 1)
    other = "the first_position of the solve is not what follows from the log"
    assert solve_from(first + 2, []).problem == other


def test_the_amounts_of_an_erratum_are_checked_in_a_log_without_bids_too() -> None:
    log = write(lambda s: replace(dear(s), inputs={**s.inputs, "slot": 2}))
    first = check(log)
    named = excuse(log, first.problem or "", dict(first.off_by or {}))
    for off_by, ok in ((dict(first.off_by or {}), True), ({"compute_price": 1.0}, False)):
        named = excuse(log, first.problem or "", off_by)
        found = verify_transcript(write_transcript_lines(named, rules=RULES, shows=lambda _: False))
        assert found.ok is ok
        assert [known.measured for known in found.known_faults] == [True] * ok


@pytest.mark.parametrize(
    ("between", "problem"),
    [
        ([], None),
        ([events.NodeJoined(node("third", ask=9.0))], "the prices do not come with a beat"),
        ([events.SlotAdvanced(1)], "the prices are for another beat: [0, 1]"),
    ],
)
def test_prices_come_into_force_with_their_beat_and_at_no_other_time(
    between: list[events.Event], problem: str | None
) -> None:
    engine = Engine(RULES)
    log = [engine.apply(events.NodeJoined(node(ask=10.0)))]
    log.append(engine.apply(events.BidsReceived(tuple((b.task.id, seal(b)) for b in BIDS))))
    log += [engine.apply(bid) for bid in BIDS]
    log.append(engine.apply(events.SlotAdvanced(0)))
    solved = solve(engine, log)
    log += [engine.apply(event) for event in (events.SlotAdvanced(0, 1), *between, solved)]
    assert check(log).problem == problem


@pytest.mark.parametrize(
    ("again", "problem"),
    [
        (Beat(0, 1), "beat 2 of slot 0 has come already"),
        (Beat(0, 0), "beat 1 of slot 0 has come already"),
        (Beat(0, 2), "slot 0 has 2 beats, and not number 3"),
    ],
)
def test_a_beat_comes_once_and_there_are_no_more_of_them(again: Beat, problem: str) -> None:
    """Else the house would say how often prices are solved."""
    engine = Engine(RULES)
    log = [engine.apply(events.SlotAdvanced(0)), engine.apply(events.SlotAdvanced(0, 1))]
    log.append(engine.apply(events.SlotAdvanced(again.slot, again.part)))
    assert (check(log).position, check(log).problem) == (3, problem)


def test_a_beat_that_is_passed_over_or_has_no_prices_is_counted() -> None:
    engine = Engine(RULES)
    log = [engine.apply(events.NodeJoined(node(ask=10.0)))]
    log.append(engine.apply(events.BidsReceived(tuple((b.task.id, seal(b)) for b in BIDS))))
    log += [engine.apply(bid) for bid in BIDS]
    beats = [engine.apply(events.SlotAdvanced(slot)) for slot in (0, 1, 3)]
    beats.append(engine.apply(events.SlotAdvanced(3, 1)))
    log += beats
    assert Engine.restore(engine.snapshot()).beat == Beat(3, 1)
    log.append(engine.apply(events.NodeJoined(node("late", ask=10.0))))
    # Two that came in between had none either, and the last one.
    assert check(log).beats_missed == 4 + 3
    hidden = write_transcript_lines(log, rules=RULES, shows=lambda _: False)
    assert verify_transcript(hidden).beats_missed == 4 + 3


def test_a_beat_misses_nothing_where_there_is_no_bid_and_cells_are_at_cost() -> None:
    engine = Engine(RULES)
    log = [engine.apply(events.NodeJoined(node(ask=10.0)))]
    log += [engine.apply(events.SlotAdvanced(slot)) for slot in (0, 1, 3)]
    log.append(engine.apply(events.SlotAdvanced(3, 1)))
    log.append(engine.apply(events.NodeJoined(node("late", ask=10.0))))
    found = check(log)
    assert (found.ok, found.beats_missed) == (True, 0)


def test_a_solve_comes_into_force_with_the_next_beat_and_not_with_one_after_it() -> None:
    """Else the house would choose between a solve and the next by letting a beat pass."""
    engine = Engine(RULES)
    log = [engine.apply(events.NodeJoined(node(ask=10.0))), engine.apply(events.SlotAdvanced(0))]
    solved = solve(engine, log)
    log.append(engine.apply(events.SlotAdvanced(1)))
    log.append(engine.apply(replace(solved, inputs={**solved.inputs, "beat": [1, 0]})))
    assert check(log).problem == "the beat of the solve is not what follows from the log"


KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
MARKET = Ed25519PrivateKey.from_private_bytes(bytes([1] * 32)).public_key().public_bytes_raw().hex()


def promise_of(log: list[ChainEntry], **changes: str) -> days.DayPromise:
    """The promise that a log's first entry makes."""
    event = log[0].event
    assert isinstance(event, events.DayPromised)
    return replace(days.DayPromise(**asdict(event), entry_hash=log[0].hash), **changes)


def open_witnessed_day(
    *, names: str = "", between: Sequence[events.Event] = (), **signed: str
) -> list[ChainEntry]:
    """A log whose second day's secret a witness has signed, or something else."""
    engine = Engine(RULES)
    key = names or KEY.public_key().public_bytes_raw().hex()
    log = [engine.apply(events.DayPromised(1, "z", commit_secret("s"), MARKET, key))]
    log += [engine.apply(event) for event in (events.SlotAdvanced(10), *between)]
    signature = days.sign_promise(promise_of(log, **signed), sign=KEY.sign)
    # Chained as it stands: an engine takes no day that was opened wrongly.
    opened = chain_entry(
        position=len(log) + 1,
        event=events.DayOpened(1, "s", signature),
        outcome=GridChange(),
        prev_hash=log[-1].hash,
    )
    return [*log, opened]


def list_verdicts(log: list[ChainEntry]) -> set[str | None]:
    """What each verifier finds, outsiders' one included."""
    shown = list(write_transcript_lines(log, rules=RULES))
    hidden = list(write_transcript_lines(log, rules=RULES, shows=lambda _: False))
    return {
        check(log).problem,
        verify_transcript(shown).problem,
        verify_transcript(hidden).problem,
        check_transcript(shown).problem,
        check_transcript(hidden).problem,
    }


def test_a_days_value_is_the_secrets_and_the_witness_s() -> None:
    log = open_witnessed_day()
    assert list_verdicts(log) == {None}
    assert (check(log).unwitnessed, check(log[:-1]).unwitnessed) == (0, 1)
    again = Engine(RULES)
    for entry in log:
        again.apply(entry.event)
    opened = log[-1].event
    assert isinstance(opened, events.DayOpened)
    value = sha256(b"s|" + bytes.fromhex(opened.witness_signature)).hexdigest()
    assert again.day == days.DayValue(value, 1)
    assert Engine.restore(again.snapshot()).day == again.day


@pytest.mark.parametrize(
    "forged",
    [
        {"entry_hash": "0" * 64},
        {"zone": "other"},
        # A key that the promise does not name could be made until the value suits.
        {"names": "0" * 64},
        # A text that names another market is of that market's day.
        {"market_key": "0" * 64},
    ],
)
def test_a_day_that_its_witness_has_not_signed_passes_no_verifier(forged: dict[str, str]) -> None:
    assert list_verdicts(open_witnessed_day(**forged)) == {
        "the entry cannot have happened: "
        "the witness of day 1 has not signed the entry that promised it"
    }


def test_a_day_is_opened_with_its_first_beat_and_not_when_its_value_suits() -> None:
    late = open_witnessed_day(between=[events.NodeJoined(node(ask=10.0))])
    found = list_verdicts(late)
    assert {str(problem).removeprefix("the entry cannot have happened: ") for problem in found} == {
        "day 1 is not opened with its first beat"
    }


def test_another_secret_than_the_promised_one_passes_no_verifier() -> None:
    *log, opened = open_witnessed_day()
    assert isinstance(opened.event, events.DayOpened)
    other = replace(opened.event, secret="t")
    forged = chain_entry(
        position=opened.position, event=other, outcome=GridChange(), prev_hash=opened.prev_hash
    )
    assert list_verdicts([*log, forged]) == {
        "the entry cannot have happened: the secret of day 1 is not the one that was promised"
    }


def test_a_seed_of_another_days_value_passes_no_verifier() -> None:
    log = write(lambda solved: replace(solved, seed=solved.seed + 1))
    assert list_verdicts(log) == {"the seed of the solve does not follow from the log"}
    assert list_verdicts(write(lambda solved: solved)) == {None}


@pytest.mark.parametrize(
    "other",
    [
        str.upper,
        lambda text: " " + text,
        lambda text: text[:2] + " " + text[2:],
        lambda text: text[2:],
    ],
)
def test_a_signature_has_one_form_or_each_other_would_be_another_draw(
    other: Callable[[str], str],
) -> None:
    log = open_witnessed_day()
    opened = log[-1].event
    assert isinstance(opened, events.DayOpened)
    engine = Engine(RULES)
    for entry in log[:-1]:
        engine.apply(entry.event)
    before = engine.snapshot()
    signature = other(opened.witness_signature)
    with pytest.raises(ValueError, match="witness_signature is not the hex of 64 bytes"):
        engine.apply(replace(opened, witness_signature=signature))
    assert engine.snapshot() == before
    assert days.is_witnessed(promise_of(log), opened.witness_signature)
    assert not days.is_witnessed(promise_of(log), signature)


@pytest.mark.parametrize(
    ("promised", "slot", "opened"),
    [
        # Another secret; before its day; after it; without a promise.
        ([events.DayPromised(1, "z", commit_secret("t"))], 10, events.DayOpened(1, "s")),
        ([events.DayPromised(1, "z", commit_secret("s"))], 9, events.DayOpened(1, "s")),
        ([events.DayPromised(1, "z", commit_secret("s"))], 20, events.DayOpened(1, "s")),
        ([], 10, events.DayOpened(1, "s")),
        # Once the day's second beat has come.
        (
            [events.DayPromised(1, "z", commit_secret("s")), events.SlotAdvanced(10)],
            11,
            events.DayOpened(1, "s"),
        ),
        # Not the day after; a second promise of one day.
        ([], 10, events.DayPromised(1, "z", commit_secret("s"))),
        (
            [events.DayPromised(1, "z", commit_secret("a"))],
            9,
            events.DayPromised(1, "z", commit_secret("b")),
        ),
    ],
)
def test_a_day_opens_with_the_secret_that_was_promised_for_it(
    promised: list[events.Event], slot: int, opened: events.Event
) -> None:
    engine = Engine(RULES)
    for event in (*promised, events.SlotAdvanced(slot)):
        engine.apply(event)
    before = engine.snapshot()
    with pytest.raises(ValueError, match="day 1"):
        engine.apply(opened)
    assert engine.snapshot() == before


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


def test_prices_are_solved_again_where_bids_are_left_out() -> None:
    """No amount has a part in them, so that everybody can."""
    honest, forged = (
        verify_transcript(write_transcript_lines(write(each), rules=RULES, shows=lambda _: False))
        for each in (lambda solved: solved, dear)
    )
    assert (honest.ok, honest.solved_again, honest.taken_as_logged) == (True, 1, 0)
    assert (forged.ok, forged.position) == (False, 14)
    assert forged.problem == "solved again, the bids before lead to another compute_price"


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


def go_on(engine: Engine, log: list[ChainEntry], *steps: events.Event) -> None:
    log += [engine.apply(event) for event in steps]


def reach(engine: Engine, log: list[ChainEntry], beat: Beat) -> None:
    """Come to a beat, at the prices solved on the state now."""
    left = engine.replica()

    def load(span: ForecastSpan) -> SeenBids:
        beats = [e.position for e in log if _begins(e.event, span.decided_from)]
        return SeenBids(tasks=[], first_position=beats[0] if span.decided_from > 0 else 1)

    solved = solve_for_beat(left, load=load)
    go_on(engine, log, events.SlotAdvanced(beat.slot, beat.part), solved)


def _begins(event: events.Event, slot: int) -> bool:
    return isinstance(event, events.SlotAdvanced) and event.slot >= slot


def test_rules_come_into_force_with_prices_that_are_solved_under_them() -> None:
    engine, log = Engine(RULES), list[ChainEntry]()
    wanted = replace(RULES, settings={**RULES.settings, "futures": 1})
    # The first slot of day 1 is 10; of day 3, whose value the change could not know, 30.
    go_on(engine, log, events.NodeJoined(node(ask=10.0)), events.SlotAdvanced(10))
    go_on(engine, log, events.RulesChanged(wanted), events.SlotAdvanced(29, 1))
    reach(engine, log, Beat(30))
    assert (engine.rules, engine.wanted_rules) == (RULES, wanted)
    reach(engine, log, Beat(30, 1))
    assert engine.rules == wanted
    reach(engine, log, Beat(31))
    asked = [e.event.inputs for e in log if isinstance(e.event, events.PricesSolved)]
    assert [inputs["settings"]["futures"] for inputs in asked] == [2, 1, 1]
    found = check(log)
    assert (found.problem, found.solved_again) == (None, 3)


@pytest.mark.parametrize("made_up", [{"futures": 0}, {"past_days": "x"}, {"most_tasks": None}])
def test_settings_that_nothing_can_be_solved_with_are_said_and_not_stumbled_over(
    made_up: dict[str, Any],
) -> None:
    rules = replace(RULES, settings={**RULES.settings, **made_up})
    named = {name: made_up.get(name, value) for name, value in asdict(QUICK).items()}
    engine = Engine(rules)
    seed = days.choose_seed(engine.day.value, slot=0, part=1)
    forged = write(lambda s: replace(s, seed=seed, inputs={**s.inputs, "settings": named}))
    found = verify([engine.apply(entry.event) for entry in forged], rules=rules)
    problem = "the prices cannot be solved again: what they name is nothing to solve"
    assert found.problem == problem


def test_a_forecast_looks_no_further_back_than_the_log_goes() -> None:
    span = choose_span(day_slots=10, began=1, slot=35, last_slot=38, past_days=10**300)
    assert span.past_starts == (15, 5)
