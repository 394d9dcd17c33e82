"""Bids that all win or all lose: one price, no gain from splitting, replayed and verified."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.auction import Engine, verify
from scheduler.auction.audit.transcripts import verify_transcript, write_transcript_lines
from scheduler.auction.log import events
from scheduler.auction.log.chain import ChainEntry, seal
from scheduler.types import Decision, Refusal, Task
from tests.properties.auction_markets import overuse, random_task
from tests.properties.test_lagrangian_policy import SolvedMarket


def priced_market(seed: int) -> tuple[Engine, int]:
    """An engine with sold cells and solved prices, and its slot."""
    market = SolvedMarket(seed)
    market.run(14)
    return market.engine, market.slot


def draw_bundle(rng: Random, slot: int, *, worth: float = 1.0) -> events.BundleArrived:
    """Draw two to five jobs that differ a little, or not at all."""
    first = replace(random_task(rng, "job-0", slot), vendors=(), owner="me")
    tasks = [first]
    for n in range(1, rng.randint(2, 5)):
        more = rng.choice([1.0, 1.0, 1.25])
        tasks.append(
            replace(
                first,
                id=f"job-{n}",
                bid=first.bid * more,
                memory_demand=first.memory_demand * more,
            )
        )
    arrivals = tuple(
        events.BidArrived(replace(task, bid=task.bid * worth), slot, f"salt of {task.id}", "bundle")
        for task in tasks
    )
    return events.BundleArrived("bundle", arrivals, "salt of the bundle")


def receive(engine: Engine, arrivals: tuple[events.BidArrived, ...]) -> ChainEntry:
    return engine.apply(
        events.BidsReceived(tuple((arrival.task.id, seal(arrival)) for arrival in arrivals))
    )


def enter(engine: Engine, bundle: events.BundleArrived) -> list[ChainEntry]:
    """Receive a bundle, decide it and enter its bids."""
    return [
        receive(engine, bundle.arrivals),
        engine.apply(bundle),
        *[engine.apply(arrival) for arrival in bundle.arrivals],
    ]


def decisions(log: list[ChainEntry]) -> list[Decision]:
    return [entry.outcome for entry in log if isinstance(entry.outcome, Decision)]


@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), worth=st.sampled_from([0.3, 1.0, 3.0, 30.0]))
def test_all_bids_of_a_bundle_win_or_none_does_and_nothing_is_reserved(
    seed: int, worth: float
) -> None:
    engine, slot = priced_market(seed)
    before = engine.snapshot()
    bundle = draw_bundle(Random(seed), slot, worth=worth)
    tasks = [arrival.task for arrival in bundle.arrivals]
    quote = engine.quote_bundle(tasks, slot=slot)
    whole, *each = decisions(enter(engine, bundle))
    assert engine.open_receipts == ()
    assert not overuse(engine)
    assert [decision.admitted for decision in each] == [whole.admitted] * len(tasks)
    assert whole.winning_price == quote.price
    if whole.admitted:
        assert quote.price is not None
        assert whole.payment == quote.price < sum(task.bid for task in tasks)
        assert sum(decision.payment for decision in each) == pytest.approx(whole.payment)
        assert tuple(decision.parts for decision in each) == quote.parts
        assert tuple(decision.schedule for decision in each) == quote.schedules
    else:
        after = engine.snapshot()
        for name in ("position", "head_hash"):
            before.pop(name), after.pop(name)
        assert after == before
        assert [decision.refusal for decision in each] == [whole.refusal] * len(tasks)
        assert [decision.payment for decision in each] == [0.0] * len(tasks)
        assert (whole.refusal is Refusal.PRICE) == (quote.price is not None)


@settings(max_examples=12)
@given(seed=st.integers(0, 10**6))
def test_bids_sent_singly_at_once_never_pay_less_than_their_bundle(seed: int) -> None:
    engine, slot = priced_market(seed)
    bundle = draw_bundle(Random(seed), slot, worth=1e6)
    split = engine.replica()
    single = tuple(replace(arrival, bundle="") for arrival in bundle.arrivals)
    receive(split, single)
    paid = decisions([split.apply(arrival) for arrival in single])
    whole = decisions(enter(engine, bundle))[0]
    if all(decision.admitted for decision in paid):
        assert whole.admitted
        assert whole.payment <= sum(decision.payment for decision in paid) * (1 + 1e-12)


@settings(max_examples=8)
@given(seed=st.integers(0, 10**6))
def test_the_curve_of_a_bundle_is_its_price_at_every_deadline_and_never_rises(seed: int) -> None:
    engine, slot = priced_market(seed)
    bundle = draw_bundle(Random(seed), slot)
    tasks = [arrival.task for arrival in bundle.arrivals]
    curve = engine.quote_bundle(tasks, slot=slot).curve
    prices = [point.price for point in curve]
    assert prices == sorted(set(prices), reverse=True)
    for deadline in range(slot, engine.horizon.last_slot + 2):
        ended = [point.price for point in curve if point.deadline_slot <= deadline]
        moved = [replace(task, deadline_slot=deadline) for task in tasks]
        found = engine.quote_bundle(moved, slot=slot).price
        assert found == (pytest.approx(ended[-1], rel=1e-12) if ended else None)


@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), worth=st.sampled_from([0.3, 3.0]), data=st.data())
def test_a_log_with_bundles_replays_retraces_and_verifies_with_and_without_bids(
    seed: int, worth: float, data: st.DataObject
) -> None:
    engine, slot = priced_market(seed)
    begin = json.loads(json.dumps(engine.snapshot()))
    log = enter(engine, draw_bundle(Random(seed), slot, worth=worth))
    found = verify(log, begin)
    assert found.ok, found.problem
    for shows in (None, lambda entry: False):
        lines = write_transcript_lines(log, snapshot=begin, shows=shows)
        found = verify_transcript(list(lines))
        assert found.ok, found.problem
        assert found.head_hash == engine.head_hash
    # A restart in the middle of a bundle goes on as if there had been none.
    at = data.draw(st.integers(0, len(log)))
    other = Engine.restore(begin)
    for entry in log[:at]:
        other.retrace(entry.event, entry.outcome, entry_hash=entry.hash)
    other = Engine.restore(json.loads(json.dumps(other.snapshot())))
    for entry in log[at:]:
        assert other.apply(entry.event) == entry
    assert other.snapshot() == engine.snapshot()


def opened_bundle() -> tuple[Engine, events.BundleArrived]:
    """A zone that has received a bundle, which would win."""
    for seed in range(20):
        engine, slot = priced_market(seed)
        bundle = draw_bundle(Random(seed), slot, worth=1e6)
        tasks = [arrival.task for arrival in bundle.arrivals]
        if engine.quote_bundle(tasks, slot=slot).price is not None:
            receive(engine, bundle.arrivals)
            return engine, bundle
    raise AssertionError("no market has room for a bundle")


def _other_bid(bundle: events.BundleArrived) -> events.BundleArrived:
    first, *rest = bundle.arrivals
    dear = replace(first, task=replace(first.task, bid=first.task.bid * 2))
    return replace(bundle, arrivals=(dear, *rest))


FALSE_BUNDLES = {
    "was not received": lambda bundle: replace(
        bundle, arrivals=(*bundle.arrivals, _renamed(bundle.arrivals[0]))
    ),
    "out of turn": lambda bundle: replace(bundle, arrivals=bundle.arrivals[::-1]),
    "is not the one that was received": _other_bid,
    "does not name it": lambda bundle: replace(bundle, bundle_id="other"),
    "fewer than two": lambda bundle: replace(bundle, arrivals=bundle.arrivals[:1]),
}


def _renamed(arrival: events.BidArrived) -> events.BidArrived:
    return replace(arrival, task=replace(arrival.task, id="stranger"))


@pytest.mark.parametrize("case", FALSE_BUNDLES)
def test_a_bundle_of_other_bids_than_were_received_is_refused(case: str) -> None:
    engine, bundle = opened_bundle()
    before = engine.snapshot()
    with pytest.raises(ValueError, match=r"bundle|bid"):
        engine.apply(FALSE_BUNDLES[case](bundle))
    assert engine.snapshot() == before
    assert engine.apply(bundle).outcome.admitted  # type: ignore[union-attr]


def test_a_bid_of_a_bundle_is_never_decided_by_itself_and_nothing_comes_between() -> None:
    engine, bundle = opened_bundle()
    first, second = bundle.arrivals[:2]
    with pytest.raises(ValueError, match="not of the bundle that is decided"):
        engine.apply(first)
    engine.apply(bundle)
    before = engine.snapshot()
    for event in (
        second,
        bundle,
        replace(first, bundle=""),
        events.ReceiptsVoided((first.task.id,), "withdrawn"),
        events.BidsReceived((("late", "seal"),)),
        events.SlotAdvanced(engine.horizon.first_slot + 1),
        events.PricesSolved(engine.horizon.first_slot, {}, {}),
    ):
        with pytest.raises(ValueError, match="bundle"):
            engine.apply(event)
        assert engine.snapshot() == before
    for arrival in bundle.arrivals:
        decision = engine.apply(arrival).outcome
        assert isinstance(decision, Decision)
        assert decision.admitted


@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), lie=st.floats(0.0, 4.0))
def test_stating_another_worth_of_a_bundle_gains_nothing(seed: int, lie: float) -> None:
    engine, slot = priced_market(seed)
    bundle = draw_bundle(Random(seed), slot)
    worth = sum(arrival.task.bid for arrival in bundle.arrivals)

    def gain(share: float) -> float:
        arrivals = tuple(
            replace(arrival, task=_with_bid(arrival.task, share)) for arrival in bundle.arrivals
        )
        whole = decisions(enter(engine.replica(), replace(bundle, arrivals=arrivals)))[0]
        return worth - whole.payment if whole.admitted else 0.0

    assert gain(lie) <= gain(1.0) + 1e-9


def _with_bid(task: Task, share: float) -> Task:
    return replace(task, bid=task.bid * share)
