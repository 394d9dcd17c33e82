"""A zone that goes on under other rules, and what a published log tells of a solve."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scheduler.auction import ChainEntry, Engine, ZoneRules, verify
from scheduler.auction.audit.transcripts import verify_transcript, write_transcript_lines
from scheduler.auction.log import events
from scheduler.auction.log.chain import entry_to_json
from scheduler.auction.log.codec import event_from_json, event_to_json
from scheduler.auction.prices.solve import SOLVER
from scheduler.experiments.auction.max_form.engine import make_engine
from scheduler.experiments.auction.max_form.policies import max_form_rules
from scheduler.public_log.canonical_json import serialize_canonical
from scheduler.public_log.days import choose_seed
from scheduler.public_log.entries import hide_bid
from tests.unit.scheduler.auction.builders import decide, enter, node, task

CALM = ZoneRules(horizon_slots=6)
GROWING = replace(CALM, settings={"growth": 0.5})
RESIDUAL = replace(CALM, policy="residual", settings=max_form_rules())


def begun(rules: ZoneRules = CALM) -> tuple[Engine, list[ChainEntry]]:
    """A zone that has sold a cell of its one node and refused a bid."""
    engine = make_engine(rules)
    return engine, [
        engine.apply(events.NodeJoined(node(ask=0.25))),
        *enter(engine, events.BidArrived(task("a", bid=9.0), 0, salt="1")),
        *enter(engine, events.BidArrived(task("low", bid=1e-9), 0, salt="2")),
    ]


def solved(price: float = 2.0) -> events.PricesSolved:
    return events.PricesSolved(
        first_slot=0,
        compute_price={"n": (price,) * 6},
        memory_price={"n": (0.5,) * 6},
        seed=11,
        inputs={"bids_today": 2},
    )


def test_a_log_whose_rules_change_twice_replays_to_the_same_hash() -> None:
    engine, log = begun()
    at = len(log)
    for event in (
        events.RulesChanged(GROWING),
        events.BidArrived(task("b", bid=50.0), 0, salt="3"),
        events.SlotAdvanced(1),
        events.RulesChanged(CALM),
        events.BidArrived(task("c", bid=50.0, arrival_slot=1), 1, salt="4"),
    ):
        log += enter(engine, event)
    assert verify(log, rules=CALM).head_hash == engine.head_hash
    again = Engine.restore(json.loads(json.dumps(engine.snapshot())))
    assert again.rules == CALM
    middle = Engine(CALM)
    for entry in log[: at + 3]:
        middle.apply(entry.event)
    restored = Engine.restore(json.loads(json.dumps(middle.snapshot())))
    assert restored.rules == GROWING
    rest = log[at + 3 :]
    assert [restored.apply(entry.event).hash for entry in rest] == [e.hash for e in rest]


def test_bids_after_the_change_pay_the_solved_price_and_those_before_keep_their_cells() -> None:
    engine, _ = begun(RESIDUAL)
    held = engine.reservations()
    engine.apply(events.RulesChanged(GROWING))
    engine.apply(solved())
    assert engine.reservations() == held
    later = decide(engine, task("b", bid=50.0))
    assert later.parts is not None
    # Two cells of 4 samples and 2 GB each.
    assert (later.parts.compute, later.parts.memory) == (2 * 4 * 2.0, 2 * 2 * 0.5)
    assert later.payment == later.parts.operational + 18.0
    assert engine.reservations()[: len(held)] == held


def test_under_a_policy_that_prices_what_is_sold_empty_cells_cost_nothing_again() -> None:
    engine, _ = begun(RESIDUAL)
    engine.apply(events.RulesChanged(GROWING))
    engine.apply(solved())
    engine.apply(events.RulesChanged(RESIDUAL))
    prices = engine.prices()
    sold = prices.compute_sold[0] > 0
    assert sold.tolist() == [True] * 2 + [False] * 4
    np.testing.assert_array_equal(prices.compute_price[0], np.where(sold, 2.0, 0.0))
    np.testing.assert_array_equal(prices.memory_price[0], np.where(sold, 0.5, 0.0))


def test_what_a_policy_remembers_outlives_a_change_of_its_own_parameters() -> None:
    engine, _ = begun(RESIDUAL)
    before = engine.snapshot()["memory"]
    assert before["density_count"] == 2.0
    engine.apply(events.RulesChanged(replace(RESIDUAL, settings=max_form_rules(steepness=0.4))))
    assert engine.snapshot()["memory"] == before
    engine.apply(events.RulesChanged(GROWING))
    assert engine.snapshot()["memory"] == {}


@pytest.mark.parametrize(
    "changed",
    [{"horizon_slots": 7}, {"base_memory": 1.0}, {"first_slot": 1}, {"money_quantum": 1.0}],
)
def test_rules_that_the_cells_were_made_by_cannot_change(changed: dict[str, float]) -> None:
    engine, _ = begun()
    head = engine.head_hash
    with pytest.raises(ValueError, match=f"{next(iter(changed))} cannot change"):
        engine.apply(events.RulesChanged(replace(CALM, **changed)))
    assert (engine.head_hash, engine.rules) == (head, CALM)


def test_a_published_log_shows_solved_prices_whole() -> None:
    engine, _ = begun()
    start = engine.snapshot()
    prices = replace(
        solved(),
        seed=choose_seed(engine.day.value, slot=0, part=1),
        inputs={"bids_today": 2, "solver": SOLVER, "beat": [0, 1]},
    )
    changes = (events.RulesChanged(GROWING), events.SlotAdvanced(0, 1), prices)
    log = [engine.apply(event) for event in changes]
    log += enter(engine, events.BidArrived(task("b", bid=50.0), 0, salt="3"))
    assert hide_bid(entry_to_json(log[2])) == entry_to_json(log[2])
    lines = list(write_transcript_lines(log, snapshot=start, shows=lambda _: False))
    found = verify_transcript(lines)
    assert (found.ok, found.entries, found.head_hash) == (True, 5, engine.head_hash)
    at = log[2].position
    dearer = [line.replace("[2.0, 2.0", "[2.01, 2.0") for line in lines]
    assert (verify_transcript(dearer).ok, verify_transcript(dearer).position) == (False, at)


def test_rows_that_nodes_share_are_written_once_and_a_zero_has_no_sign() -> None:
    event = events.PricesSolved(
        first_slot=3,
        compute_price={"a": (0.1, 0.0), "b": (0.1, -0.0), "d": (0.2, 0.0), "c": (0.1, 0.0)},
        memory_price={"a": (1.0,), "c": (1.0,)},
    )
    text = serialize_canonical(event_to_json(event))
    data = json.loads(text)
    assert data["compute_price"] == {
        "rows": [[0.1, 0.0], [0.2, 0.0]],
        "nodes": {"a": 0, "b": 0, "d": 1, "c": 0},
    }
    assert data["memory_price"] == {"rows": [[1.0]], "nodes": {"a": 0, "c": 0}}
    read = event_from_json(data)
    assert read == event
    assert serialize_canonical(event_to_json(read)) == text


def test_a_solved_price_of_minus_zero_leads_to_the_state_that_its_log_leads_to() -> None:
    engine, _ = begun()
    start = engine.snapshot()
    entry = engine.apply(replace(solved(), compute_price={"n": (-0.0, 1.0, -1.0, 0.0, 2.0, 3.0)}))
    again = Engine.restore(start)
    again.apply(event_from_json(json.loads(serialize_canonical(event_to_json(entry.event)))))
    assert again.snapshot() == engine.snapshot()


def test_what_tax_costs_holds_at_once_and_other_rules_from_the_day_after_the_next_on() -> None:
    rules = replace(CALM, day_slots=10, tax_share=0.1)
    engine = Engine(rules)
    engine.apply(events.SlotAdvanced(12))
    engine.apply(events.RulesChanged(replace(rules, fee_per_unit=2.0)))
    engine.apply(events.SlotAdvanced(21))
    engine.apply(events.RulesChanged(replace(rules, fee_per_unit=3.0, tax_share=0.2)))
    held = list[tuple[float, float]]()
    wanted = engine.wanted_rules
    for slot in (30, 31, 40, 43):
        engine.apply(events.SlotAdvanced(slot))
        engine = Engine.restore(json.loads(json.dumps(engine.snapshot())))
        held.append((engine.rules.fee_per_unit, engine.rules.tax_share))
    # Nobody promised a day's secret, and rules hold all the same.
    assert held == [(0.0, 0.2), (2.0, 0.2), (2.0, 0.2), (3.0, 0.2)]
    assert engine.rules == wanted == replace(rules, fee_per_unit=3.0, tax_share=0.2)
    assert engine.snapshot()["waiting"] == []


def test_rules_that_are_changed_back_wait_for_nothing() -> None:
    rules = replace(CALM, day_slots=10)
    engine = Engine(rules)
    engine.apply(events.SlotAdvanced(12))
    for fee in (2.0, 0.0):
        engine.apply(events.RulesChanged(replace(rules, fee_per_unit=fee)))
    assert (engine.snapshot()["waiting"], engine.wanted_rules) == ([], rules)


@pytest.mark.parametrize("beats", [0, 13, 2.0, True, "2"])
def test_a_slot_has_one_to_twelve_beats(beats: Any) -> None:
    with pytest.raises(ValueError, match="a slot has 1 to 12 beats"):
        replace(CALM, beats_per_slot=beats)
