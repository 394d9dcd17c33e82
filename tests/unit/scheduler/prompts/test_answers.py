"""The express lane's answers: found again from their question, certified only where they hold."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.prompts.answers import (
    answer_question,
    build_question,
    build_waiting_question,
    compute_price_micros,
    plan_waiting,
)
from scheduler.prompts.jobs import Course
from scheduler.prompts.planning import Promise
from tests.unit.scheduler.prompts.builders import EVEN, make_job

PRICE = {"rate_micros": 1000, "urgency_percent": 50}


def ask(*free_at_s, slo_s=60.0, work_s=20.0, now_s=0.0, promised=(), latest_s=1000.0, **job):
    seats = [(f"seat-{place}", free_s) for place, free_s in enumerate(free_at_s)]
    question = build_question(
        make_job(work_gpu_s=work_s, slo_s=slo_s, **job),
        promised,
        seats,
        now_s,
        rules=replace(EVEN, max_gpus=1),
        latest_s=latest_s,
        price=PRICE,
    )
    # As a log gives it back.
    return json.loads(json.dumps(question))


def test_a_job_that_an_idle_seat_ends_in_time_is_certified():
    found = answer_question(ask(0.0))
    assert found == {
        "answer": "certified",
        "slo_s": 60.0,
        "seat": "seat-0",
        "start_s": 0.0,
        "end_s": 20.0,
        "looks_up": False,
        "price_micros": 23_334,
        "least_slo_s": 20.0,
        "moved": [],
    }


def test_a_job_waits_for_the_seat_that_comes_free_in_time():
    found = answer_question(ask(30.0, 35.0))
    assert (found["answer"], found["seat"], found["start_s"], found["end_s"]) == (
        *("certified", "seat-0"),
        *(30.0, 50.0),
    )


def test_a_later_slo_is_offered_at_a_lower_price():
    on_time, later = answer_question(ask(0.0)), answer_question(ask(50.0))
    assert (later["answer"], later["slo_s"]) == ("later", 75.0)
    assert later["price_micros"] < on_time["price_micros"]


def test_a_refusal_says_why_and_takes_nothing():
    too_short = answer_question(ask(0.0, slo_s=3.0))
    full = answer_question(ask(900.0))
    assert (too_short["answer"], too_short["least_slo_s"]) == ("too short", 20.0)
    assert full["answer"] == "full"
    for found in (too_short, full):
        assert [found[name] for name in ("seat", "slo_s", "price_micros")] == [None] * 3


def test_nothing_is_certified_beyond_the_time_that_seats_are_bought_for():
    assert answer_question(ask(0.0, latest_s=59.0))["answer"] == "full"
    later = answer_question(ask(50.0, latest_s=80.0))
    assert (later["answer"], later["slo_s"]) == ("later", 75.0)
    assert answer_question(ask(60.0, latest_s=80.0))["answer"] == "full"


def test_a_job_never_pushes_an_earlier_promise_over_its_deadline():
    waiting = make_job("waiting", work_gpu_s=20.0, slo_s=45.0)
    promise = Promise(waiting, 1, Course(False, 20.0, 0.0), 20.0, 40.0)
    # Its own deadline is earlier, but the seat is promised.
    found = answer_question(ask(20.0, slo_s=41.0, promised=[promise]))
    assert found["answer"] == "later"
    assert found["start_s"] >= 40.0


def test_the_seat_that_came_free_last_is_taken_so_that_idle_ones_can_go_back():
    assert answer_question(ask(-50.0, -1.0, now_s=0.0))["seat"] == "seat-1"


@given(
    work_s=st.floats(0.1, 1e4),
    slos=st.lists(st.floats(0.1, 1e5), min_size=2, max_size=2),
)
def test_a_later_slo_never_costs_more(work_s, slos):
    short, long = sorted(slos)
    prices = [compute_price_micros(work_s=work_s, slo_s=slo_s, **PRICE) for slo_s in (short, long)]
    assert prices[0] >= prices[1] >= int(1000 * work_s)


@given(
    frees=st.lists(st.floats(0.0, 100.0), max_size=6),
    slo_s=st.floats(1.0, 200.0),
    work_s=st.floats(0.5, 100.0),
)
def test_a_certified_job_ends_by_the_slo_certified_on_a_seat_that_is_free(frees, slo_s, work_s):
    question = ask(*frees, slo_s=slo_s, work_s=work_s)
    found = answer_question(question)
    assert answer_question(question) == found
    if found["seat"] is None:
        assert found["answer"] in ("too short", "full")
        return
    assert found["end_s"] <= found["slo_s"] + 1e-6
    assert dict(question["seats"])[found["seat"]] <= found["start_s"]
    assert found["end_s"] == pytest.approx(found["start_s"] + work_s)


def waiting(name, slo_s, *, start_s, work_s=20.0):
    """A job that waits and was promised ``work_s`` from ``start_s`` on."""
    course = Course(False, work_s, 0.0)
    job = make_job(name, work_gpu_s=work_s, slo_s=slo_s)
    return Promise(job, 1, course, start_s, start_s + work_s)


def test_a_newcomer_with_an_earlier_deadline_goes_first_and_the_others_move():
    patient = waiting("patient", 100.0, start_s=20.0)
    found = answer_question(ask(20.0, slo_s=45.0, promised=[patient]))
    assert (found["answer"], found["start_s"]) == ("certified", 20.0)
    assert found["moved"] == [["patient", "seat-0", 40.0, 60.0]]


def test_a_later_slo_that_is_only_offered_moves_no_one():
    patient = waiting("patient", 300.0, start_s=50.0)
    assert answer_question(ask(50.0, slo_s=75.0, promised=[patient]))["moved"] == [
        ["patient", "seat-0", 70.0, 90.0]
    ]
    offered = answer_question(ask(50.0, slo_s=60.0, promised=[patient]))
    assert (offered["answer"], offered["slo_s"], offered["moved"]) == ("later", 75.0, [])


def test_jobs_that_wait_start_in_the_order_they_had_when_a_seat_comes_free():
    promised = [waiting("b", 200.0, start_s=60.0), waiting("a", 90.0, start_s=40.0)]
    question = build_waiting_question(
        promised, [("seat-0", 10.0)], 10.0, rules=replace(EVEN, max_gpus=1)
    )
    found = plan_waiting(json.loads(json.dumps(question)))
    assert found == {"moved": [["a", "seat-0", 10.0, 30.0], ["b", "seat-0", 30.0, 50.0]]}


def test_a_plan_that_would_break_a_promise_moves_nobody():
    late = waiting("late", 30.0, start_s=5.0)
    question = build_waiting_question(
        [late], [("seat-0", 25.0)], 10.0, rules=replace(EVEN, max_gpus=1)
    )
    assert plan_waiting(question) == {"moved": []}
