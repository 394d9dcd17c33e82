"""Gangs of the live lane: the fewest seats of one node, behind what waits there."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.prompts.answers import answer_question, build_question, compute_price_micros
from scheduler.prompts.gangs import (
    GangRules,
    compute_gang_run_s,
    compute_held_seat_s,
    find_fewest_seats,
    find_gang,
)
from tests.unit.scheduler.prompts.builders import EVEN, make_job

RULES = GangRules(most=4, places=4, fixed_s=2.0)
PRICE = {"rate_micros": 1000, "urgency_percent": 50}
SHAPES = st.integers(1, 8).flatmap(
    lambda places: st.builds(
        GangRules, most=st.integers(1, places), places=st.just(places), fixed_s=st.floats(0.0, 5.0)
    )
)


def find(seats, *, due_s, work_s=42.0, now_s=0.0, most=4):
    rules = replace(RULES, most=most)
    return find_gang(work_s, due_s, seats, now_s, rules=rules, round_s=1.0)


def test_a_gang_gains_the_neighbours_that_are_not_there():
    assert [compute_gang_run_s(42.0, seats, RULES) for seats in (1, 2, 3, 4)] == [
        42.0,
        32.0,
        22.0,
        12.0,
    ]
    assert [find_fewest_seats(42.0, s, RULES) for s in (42, 32, 31, 12, 11)] == [1, 2, 3, 4, 0]


def test_the_fewest_seats_of_one_node_are_taken_those_that_came_free_last():
    seats = [("a", "n", -9.0), ("b", "n", -1.0), ("c", "n", 0.0), ("d", "m", 0.0)]
    found = find(seats, due_s=32.0)
    assert found is not None
    assert (found.seats, found.start_s, found.end_s) == (("b", "c"), 0.0, 32.0)


def test_no_gang_spans_two_nodes():
    assert find([("a", "n", 0.0), ("b", "m", 0.0)], due_s=32.0) is None


def test_a_gang_waits_for_the_last_of_its_seats_and_the_round_after():
    found = find([("a", "n", 0.0), ("b", "n", 10.0)], due_s=43.0)
    assert found is not None
    assert (found.start_s, found.end_s) == (11.0, 43.0)
    assert find([("a", "n", 0.0), ("b", "n", 10.0)], due_s=42.5) is None


def test_a_gang_is_no_larger_than_may_be_sold():
    seats = [(name, "n", 0.0) for name in "abcd"]
    assert find(seats, due_s=12.0) is not None
    assert find(seats, due_s=12.0, most=3) is None


@given(
    work_s=st.floats(0.1, 1e3), slos=st.tuples(st.floats(0.1, 2e3), st.floats(0.1, 2e3)), r=SHAPES
)
def test_a_shorter_slo_never_costs_less_and_more_seats_never_take_longer(work_s, slos, r):
    prices = [
        compute_price_micros(work_s=work_s, slo_s=slo_s, **PRICE, gang=asdict(r))
        for slo_s in sorted(slos)
    ]
    assert prices[0] >= prices[1] >= int(1000 * work_s)
    runs = [compute_gang_run_s(work_s, seats, r) for seats in range(1, r.places + 1)]
    assert runs == sorted(runs, reverse=True)
    # What an SLO is charged for covers the seats that it takes.
    seats = find_fewest_seats(work_s, slos[0], r)
    if seats:
        assert compute_held_seat_s(work_s, slos[0], r) >= seats * compute_gang_run_s(
            work_s, seats, r
        )


@given(
    seats=st.lists(st.tuples(st.sampled_from("nm"), st.floats(-20.0, 60.0)), max_size=8),
    work_s=st.floats(0.1, 100.0),
    due_s=st.floats(0.1, 150.0),
    r=SHAPES,
)
def test_a_gang_ends_in_time_on_free_seats_of_one_node_and_no_smaller_one_would(
    seats, work_s, due_s, r
):
    named = [(f"s{i}", node, free_s) for i, (node, free_s) in enumerate(seats)]
    found = find_gang(work_s, due_s, named, 0.0, rules=r, round_s=1.0)
    by_name = {name: (node, free_s) for name, node, free_s in named}

    def ends_in_time(size, node):
        free = sorted(f if f <= 0 else f + 1.0 for _, n, f in named if n == node)
        start_s = max(0.0, free[size - 1]) if size <= len(free) else 1e9
        return start_s + compute_gang_run_s(work_s, size, r) <= due_s

    if found is None:
        assert not any(ends_in_time(k, node) for k in range(2, r.most + 1) for node in "nm")
        return
    assert found.end_s <= due_s + 1e-6
    assert len({by_name[name][0] for name in found.seats}) == 1
    assert all(by_name[name][1] <= found.start_s for name in found.seats)
    assert 2 <= len(set(found.seats)) <= r.most
    smaller = range(2, len(found.seats))
    assert not any(ends_in_time(k, node) for k in smaller for node in "nm")


def ask(*free_s, slo_s, gangs=RULES):
    seats = [(f"s{i}", at) for i, at in enumerate(free_s)]
    question = build_question(
        make_job(work_gpu_s=42.0, slo_s=slo_s),
        (),
        seats,
        0.0,
        rules=replace(EVEN, max_gpus=1),
        latest_s=1000.0,
        price=PRICE | {"gang": asdict(gangs)},
        gangs=asdict(gangs) | {"seats": [[name, "n", at] for name, at in seats]},
    )
    return answer_question(json.loads(json.dumps(question)))


def test_an_slo_below_the_work_of_one_seat_is_certified_with_several():
    found = ask(0.0, 0.0, 0.0, slo_s=32.0)
    assert (found["answer"], found["seats"], found["end_s"]) == ("certified", ["s1", "s2"], 32.0)
    # Two seats for 32 s, with the whole surcharge.
    assert found["price_micros"] == 96_000
    assert found["least_slo_s"] == 12.0


def test_one_seat_that_does_is_taken_alone():
    found = ask(0.0, 0.0, slo_s=42.0)
    assert (found["answer"], found["seat"], "seats" in found) == ("certified", "s1", False)


@pytest.mark.parametrize(
    ("free_s", "slo_s", "answer"),
    [
        ((0.0, 0.0), 2.0, "too short"),
        ((0.0, 0.0), 11.0, "later"),
        ((0.0, 500.0), 22.0, "later"),
        ((0.0,), 41.0, "later"),
    ],
)
def test_without_seats_in_time_it_is_a_later_slo_or_a_no(free_s, slo_s, answer):
    assert ask(*free_s, slo_s=slo_s)["answer"] == answer


def test_an_slo_that_busy_seats_would_keep_is_not_called_too_short():
    assert ask(900.0, 900.0, slo_s=12.5)["answer"] == "full"


@pytest.mark.parametrize("fields", [(0, 4, 2.0), (5, 4, 2.0), (1, 4, -1.0), (1, 4, float("nan"))])
def test_rules_that_cannot_be_are_refused(fields):
    with pytest.raises(ValueError, match=r"must not be below zero|a gang has"):
        GangRules(*fields)
