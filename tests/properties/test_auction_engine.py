"""What the auction promises, whatever happens to the zone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduler.auction import (
    Engine,
    ReleasedCells,
    Replan,
    entry_from_json,
    entry_to_json,
    rules_from_json,
    rules_to_json,
    verify,
)
from scheduler.auction.audit.transcripts import verify_transcript, write_transcript_lines
from scheduler.auction.log import events
from scheduler.experiments.auction.max_form.engine import make_engine
from scheduler.public_log.entries import hash_entry
from scheduler.types import Decision, Refusal
from tests.properties.auction_markets import Market, faults_of, overuse
from tests.unit.scheduler.auction.builders import enter

SEEDS = st.integers(0, 2**32)
ALTERATIONS = ["payment", "bid", "hash", "cut"]
POLICIES = pytest.mark.parametrize("policy", ["residual", "lagrangian"])


@POLICIES
@settings(max_examples=200, deadline=None)
@given(seed=SEEDS, steps=st.integers(1, 60))
def test_no_cell_is_ever_oversold_and_every_admission_keeps_its_terms(
    policy: str, seed: int, steps: int
) -> None:
    market = Market(seed, policy=policy)
    for _ in range(steps):
        event = market.next_event()
        outcome = enter(market.engine, event)[-1].outcome
        assert overuse(market.engine) == []
        if isinstance(event, events.BidArrived):
            assert isinstance(outcome, Decision)
            assert faults_of(outcome, event.task, event.slot, market.engine) == []


@settings(max_examples=300, deadline=None)
@given(seed=SEEDS, steps=st.integers(1, 60), at=st.integers(0, 60))
def test_a_replay_gives_every_decision_price_and_hash_again(seed: int, steps: int, at: int) -> None:
    market = Market(seed, policy="lagrangian")
    log = market.run(min(at, steps))
    snapshot = json.loads(json.dumps(market.engine.snapshot()))
    tail = market.run(steps - min(at, steps))
    log = [*log, *tail]
    texts = [json.dumps(entry_to_json(entry)) for entry in log]
    read = [entry_from_json(json.loads(text)) for text in texts]
    assert read == log
    from_start = verify(
        read, rules=rules_from_json(json.loads(json.dumps(rules_to_json(market.rules))))
    )
    assert from_start.ok, from_start.problem
    assert (from_start.entries, from_start.head_hash) == (len(log), market.engine.head_hash)
    from_snapshot = verify(read[len(log) - len(tail) :], snapshot)
    assert from_snapshot.ok, from_snapshot.problem
    assert from_snapshot.head_hash == market.engine.head_hash
    restored = Engine.restore(snapshot)
    for entry in tail:
        restored.apply(entry.event)
    assert restored.snapshot() == market.engine.snapshot()


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, steps=st.integers(1, 60), data=st.data())
def test_a_log_without_bids_still_shows_every_price_to_be_right(
    seed: int, steps: int, data: st.DataObject
) -> None:
    market = Market(seed, policy="lagrangian")
    log = market.run(steps)
    shown = data.draw(st.sets(st.integers(1, len(log))))
    lines = list(
        write_transcript_lines(log, rules=market.rules, shows=lambda entry: entry.position in shown)
    )
    found = verify_transcript(lines)
    assert found.ok, found.problem
    assert (found.entries, found.head_hash) == (len(log), market.engine.head_hash)
    hidden = [json.loads(line) for line in lines[1:]]
    for entry, line in zip(log, hidden, strict=True):
        if isinstance(entry.event, events.BidArrived) and entry.position not in shown:
            assert "bid" not in line["event"]["task"]
            assert "salt" not in line["event"]
            assert "surplus" not in line["outcome"]
            line["outcome"]["payment"] += 0.01
            altered = [*lines[: entry.position], json.dumps(line), *lines[entry.position + 1 :]]
            refused = verify_transcript(altered)
            assert not refused.ok
            assert refused.position == entry.position
            # A forger who makes the chain fit again is caught by the replay.
            line["hash"] = hash_entry(
                position=entry.position,
                event=line["event"],
                outcome=line["outcome"],
                prev_hash=line["prev_hash"],
            )
            altered[entry.position] = json.dumps(line)
            assert verify_transcript(altered).problem == (
                "the replay differs from the log in payment"
            )
            break


@settings(max_examples=200, deadline=None)
@given(seed=SEEDS, data=st.data())
def test_an_altered_log_does_not_verify(seed: int, data: st.DataObject) -> None:
    market = Market(seed, policy="lagrangian")
    log = market.run(25)
    bids = [at for at, entry in enumerate(log) if isinstance(entry.event, events.BidArrived)]
    assume(bids)
    at, what = data.draw(st.sampled_from(bids)), data.draw(st.sampled_from(ALTERATIONS))
    # That a log ends early is seen by its head, which is not in it.
    assume(what != "cut" or at < len(log) - 1)
    entry = log[at]
    assert isinstance(entry.event, events.BidArrived)
    assert isinstance(entry.outcome, Decision)
    if what == "payment":
        payment = entry.outcome.payment + 0.01
        entry = replace(entry, outcome=replace(entry.outcome, payment=payment))
    elif what == "bid":
        task = replace(entry.event.task, bid=entry.event.task.bid + 0.01)
        entry = replace(entry, event=replace(entry.event, task=task))
    elif what == "hash":
        entry = replace(entry, hash=entry.hash[::-1] + "0")
    altered = [*log[:at], *([] if what == "cut" else [entry]), *log[at + 1 :]]
    found = verify(altered, rules=market.rules)
    assert not found.ok
    assert found.position == log[at].position + (1 if what == "cut" else 0)
    assert found.entries == at


@settings(max_examples=200, deadline=None)
@given(seed=SEEDS, steps=st.integers(0, 60))
def test_a_quote_is_what_the_decision_then_charges_and_changes_nothing(
    seed: int, steps: int
) -> None:
    market = Market(seed, policy="residual")
    market.run(steps)
    bid = market.bid()
    before = market.engine.snapshot()
    quote = market.engine.quote(bid.task, slot=bid.slot)
    assert market.engine.snapshot() == before
    assert quote.position == market.engine.position
    decision = market.engine.transition(bid)
    assert isinstance(decision, Decision)
    if quote.price is None:
        assert not decision.admitted
        assert decision.refusal is quote.refusal is not None
        return
    assert decision.admitted == (bid.task.bid > quote.price)
    assert decision.parts == quote.parts
    assert decision.surplus == bid.task.bid - quote.price
    if decision.admitted:
        assert decision.payment == quote.price
    at_own_deadline = [p for p in quote.curve if p.deadline_slot <= bid.task.deadline_slot]
    assert at_own_deadline[-1].price == pytest.approx(quote.price, rel=1e-9, abs=1e-9)
    prices = [point.price for point in quote.curve]
    assert prices == sorted(set(prices), reverse=True)
    if market.rules.money_quantum == 1.0:
        assert decision.payment == int(decision.payment)


@settings(max_examples=200, deadline=None)
@given(seed=SEEDS, steps=st.integers(0, 60))
def test_a_refused_bid_leaves_no_trace_on_the_grid_and_learns_what_would_win(
    seed: int, steps: int
) -> None:
    market = Market(seed, policy="residual")
    market.run(steps)
    bid = market.bid()
    engine = market.engine.replica()
    before = engine.snapshot()
    decision = market.engine.transition(bid)
    assert isinstance(decision, Decision)
    assume(not decision.admitted)
    after = market.engine.snapshot()
    assert {name: after[name] for name in ("arrays", "holds", "nodes")} == {
        name: before[name] for name in ("arrays", "holds", "nodes")
    }
    assert decision.payment == 0.0

    def again(**changes: float) -> Decision:
        other = engine.replica()
        outcome = other.transition(replace(bid, task=replace(bid.task, **changes)))
        assert isinstance(outcome, Decision)
        return outcome

    assert decision.refusal is not None
    assert (decision.winning_price is not None) == (decision.refusal is Refusal.PRICE)
    if decision.winning_price is not None:
        assert not again(bid=decision.winning_price).admitted
        higher = again(bid=decision.winning_price * (1 + 1e-9) + 1e-9)
        assert higher.admitted
        assert higher.payment == decision.winning_price
    if decision.winning_deadline_slot is None:
        assert not again(deadline_slot=market.engine.horizon.last_slot).admitted
    else:
        later = again(deadline_slot=decision.winning_deadline_slot)
        assert later.admitted
        assert later.payment == decision.winning_deadline_price
        assert decision.winning_deadline_slot > bid.task.deadline_slot
        assert not again(deadline_slot=decision.winning_deadline_slot - 1).admitted


@settings(max_examples=300, deadline=None)
@given(seed=SEEDS, steps=st.integers(0, 60))
def test_a_bid_without_a_plan_is_told_whether_an_empty_zone_would_have_had_one(
    seed: int, steps: int
) -> None:
    market = Market(seed, policy="residual")
    market.run(steps)
    bid = market.bid()
    told = market.engine.quote(bid.task, slot=bid.slot).refusal
    empty = make_engine(replace(market.rules, first_slot=market.engine.horizon.first_slot))
    for node in market.engine.nodes:
        empty.apply(events.NodeJoined(node))
    sold_out = told is Refusal.CAPACITY and len(market.engine.nodes) > 0
    expected = None if sold_out else told
    assert empty.quote(bid.task, slot=bid.slot).refusal is expected


@POLICIES
@settings(max_examples=150, deadline=None)
@given(seed=SEEDS, steps=st.integers(0, 60), factor=st.floats(0.0, 100.0))
def test_the_price_does_not_depend_on_the_bid(
    policy: str, seed: int, steps: int, factor: float
) -> None:
    market = Market(seed, policy=policy)
    market.run(steps)
    bid = market.bid()
    before = market.engine.replica()
    one = market.engine.transition(bid)
    changed = replace(bid, task=replace(bid.task, bid=bid.task.bid * factor))
    other = before.transition(changed)
    assert isinstance(one, Decision)
    assert isinstance(other, Decision)
    assert one.parts == other.parts
    assert one.schedule == other.schedule
    if one.admitted and other.admitted:
        assert one.payment == other.payment


@settings(max_examples=300, deadline=None)
@given(
    seed=SEEDS,
    steps=st.integers(0, 60),
    later=st.integers(0, 4),
    more_work=st.floats(1.0, 3.0),
    more_memory=st.floats(1.0, 3.0),
)
def test_the_price_never_rises_with_the_deadline_nor_falls_with_work_or_memory(
    seed: int, steps: int, later: int, more_work: float, more_memory: float
) -> None:
    market = Market(seed, policy="residual")
    market.run(steps)
    bid = market.bid()
    task = bid.task

    def price(**changes: float) -> float:
        found = market.engine.quote(replace(task, **changes), slot=bid.slot).price
        return float("inf") if found is None else found

    own = price()
    slack = 1e-9 * (own if own < float("inf") else 0.0) + 1e-9
    assert price(deadline_slot=task.deadline_slot + later) <= own + slack
    assert price(compute_demand=task.compute_demand * more_work) >= own - slack
    assert price(memory_demand=task.memory_demand * more_memory) >= own - slack


@settings(max_examples=200, deadline=None)
@given(seed=SEEDS, steps=st.integers(10, 60))
def test_a_replan_costs_nothing_and_says_whether_all_the_work_fits(seed: int, steps: int) -> None:
    market = Market(seed, policy="residual")
    market.run(steps)
    held = sorted({reservation.task_id for reservation in market.engine.reservations()})
    assume(held)
    task = replace(market.tasks[held[0]], arrival_slot=market.slot, vendors=())
    outcome = market.engine.apply(events.TaskReplanned(task, market.slot)).outcome
    assert isinstance(outcome, Replan)
    now = tuple(r.cell for r in market.engine.reservations() if r.task_id == task.id)
    if outcome.schedule is None:
        assert now == ()
        return
    assert now == outcome.schedule.cells
    types = {node.id: node.gpu_type for node in market.engine.nodes}
    work = sum(task.rates[types[cell.node]] for cell in now)
    assert outcome.complete == (work >= task.compute_demand * (1 - 1e-9))
    assert outcome.late == (not outcome.complete or now[-1].slot > task.deadline_slot)
    if outcome.complete and not outcome.late:
        assert outcome.schedule.finish_slot <= task.deadline_slot


@settings(max_examples=200, deadline=None)
@given(seed=SEEDS, steps=st.integers(0, 60))
def test_releasing_all_of_an_admission_puts_its_empty_cells_back_as_they_were(
    seed: int, steps: int
) -> None:
    market = Market(seed, policy="residual")
    market.run(steps)
    for _ in range(30):
        before, bid = market.engine.prices(), market.bid()
        decision = market.engine.transition(bid)
        assert isinstance(decision, Decision)
        if decision.admitted:
            break
    assume(decision.admitted)
    assert decision.schedule is not None
    market.engine.apply(events.CellsReleased(bid.task.id, decision.schedule.cells))
    after = market.engine.prices()
    assert after.compute_sold == pytest.approx(before.compute_sold, abs=1e-12)
    assert after.memory_sold == pytest.approx(before.memory_sold, abs=1e-12)
    # Back to the price before, or to that of an unsold cell if none is left on it.
    for name in ("compute_price", "memory_price"):
        was, now = getattr(before, name), getattr(after, name)
        sold = before.memory_sold > 0
        assert now[sold] == pytest.approx(was[sold], rel=1e-9, abs=1e-12)
        assert (now[~sold] <= was[~sold] + 1e-12).all()


@POLICIES
@settings(max_examples=100, deadline=None)
@given(
    seed=SEEDS,
    before=st.integers(0, 40),
    between=st.integers(0, 20),
    left=st.sampled_from((1, 2, 4)),
    begun=st.sampled_from((0, 2, 4)),
)
def test_to_give_a_job_back_and_buy_it_again_gains_nothing(
    policy: str, seed: int, before: int, between: int, left: int, begun: int
) -> None:
    market = Market(seed, policy=policy)
    market.run(before)
    for _ in range(30):
        bid = market.bid()
        decision = market.engine.transition(bid)
        assert isinstance(decision, Decision)
        if decision.admitted:
            break
    assume(decision.admitted)
    assert decision.parts is not None
    market.run(between)
    engine, name = market.engine, bid.task.id
    held = tuple(one.cell for one in engine.reservations() if one.task_id == name)
    slot = engine.horizon.first_slot
    # A part of it is left, and a part of that was to be done in the cell that runs.
    units = bid.task.compute_demand / left
    rest = replace(bid.task, arrival_slot=slot, compute_demand=units, bid=0.0, vendors=(), owner="")
    paid = int(decision.payment - decision.parts.vendor) // left
    giving = events.CellsReleased(name, held, rest=rest, paid=paid)
    if begun:
        asks = int(decision.parts.operational) // left // begun
        giving = replace(giving, begun=units / begun, begun_asks=min(asks, paid))
    released = engine.transition(giving)
    assert isinstance(released, ReleasedCells)
    assert released.refund is not None
    # Whether or not the cells are sold again.
    whole = released.refund + released.waits
    assert whole <= paid * 98 // 100
    again = engine.transition(events.BidArrived(replace(rest, bid=1e12), slot))
    assert isinstance(again, Decision)
    if again.admitted:
        # What is left costs as much as was said, and a fiftieth more than came back for it.
        assert again.payment == released.price
        assert whole * 100 <= again.payment * 98
