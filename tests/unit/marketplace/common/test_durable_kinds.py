"""Every kind of durable work, through every fault that the mechanism promises to stand."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from marketplace.common.durable.kinds import WorkFailed, WorkKind, get_kinds
from marketplace.common.durable.run import run_due_work
from marketplace.common.models import DurableWork
from tests.builders import NOW
from tests.durable_cases import CASES, Case
from tests.unit.marketplace.common.threads import at_once

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=sorted(get_kinds()))
def kind(request) -> WorkKind:
    return get_kinds()[request.param]


@pytest.fixture
def case(kind) -> Case:
    made = CASES[kind.name]()
    assert DurableWork.objects.get().kind == kind.name
    assert made.read() == made.before
    return made


def run(kind: WorkKind, do: Any = None, *, at: datetime = NOW, **changed: Any) -> int:
    return run_due_work(replace(kind, **({"do": do} if do else {}), **changed), clock=lambda: at)


def succeed(case: Case) -> Any:
    def do(*_: Any) -> Any:
        assert not connection.in_atomic_block
        return case.result

    return do


def fail(*_: Any) -> None:
    raise RuntimeError("boom")


def die(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_it_is_done_once(kind, case):
    assert run(kind, succeed(case), at=NOW - timedelta(seconds=1)) == 0
    assert case.read() == case.before
    assert run(kind, succeed(case)) == 1
    assert case.read() == case.done
    assert run(kind, die) == 0
    assert case.read() == case.done
    assert all(row.due_at > NOW for row in DurableWork.objects.filter(kind=kind.name))


@pytest.mark.parametrize("late", [None, WorkFailed("late", is_final=True), RuntimeError("late")])
def test_a_worker_whose_lease_ran_out_stores_nothing_over_the_next_ones_success(kind, case, late):
    after = []

    def be_overtaken(*_: Any) -> Any:
        assert run(kind, succeed(case), at=NOW + kind.lease) == 1
        after.append((case.read(), list(DurableWork.objects.values())))
        if late is not None:
            raise late
        return case.result

    # In the worker's own thread: the other one shares its connection.
    assert run(kind, be_overtaken, batch=1) == 1
    [(state, rows)] = after
    assert state == case.done
    assert case.read() == state
    assert list(DurableWork.objects.values()) == rows


def test_a_worker_killed_before_it_applies_leaves_no_trace_and_another_begins_again(kind, case):
    with pytest.raises(KeyboardInterrupt):
        run(kind, succeed(case), apply=die)
    assert case.read() == case.before
    assert run(kind, die, at=NOW + kind.lease - timedelta(seconds=1)) == 0
    assert run(kind, succeed(case), at=NOW + kind.lease) == 1
    assert case.read() == case.done


def test_a_worker_killed_while_it_applies_leaves_no_trace(kind, case):
    def apply_and_die(*args: Any, **named: Any) -> None:
        kind.apply(*args, **named)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(kind, succeed(case), apply=apply_and_die)
    assert case.read() == case.before
    assert run(kind, succeed(case), at=NOW + kind.lease) == 1
    assert case.read() == case.done


def test_of_two_workers_at_once_one_does_it(kind, case):
    taken = at_once([lambda: run(kind, succeed(case)), lambda: run(kind, succeed(case))])
    assert sorted(taken) == [0, 1]
    assert case.read() == case.done


def test_a_handler_that_raises_is_tried_again_and_given_up_as_its_kind_says(kind, case):
    at, attempt = NOW, 0
    while True:
        attempt += 1
        assert run(kind, fail, at=at) == 1
        work = DurableWork.objects.get()
        assert (work.attempts, work.last_error) == (attempt, "RuntimeError: boom")
        assert (work.lease_token, work.lease_until) == ("", None)
        if work.state == "failed" or attempt == 40:
            break
        assert work.due_at > at
        assert run(kind, die, at=work.due_at - timedelta(microseconds=1)) == 0
        at = work.due_at
    assert (work.state == "failed") == (kind.backoff(attempt) is None)
    assert case.read() == case.failed


def test_an_error_while_applying_is_rolled_back_and_tried_again(kind, case):
    def apply_and_fail(*args: Any, **named: Any) -> None:
        kind.apply(*args, **named)
        raise RuntimeError("boom")

    assert run(kind, succeed(case), apply=apply_and_fail, fail=lambda *_, **__: None) == 1
    assert case.read() == case.before
    work = DurableWork.objects.get()
    assert (work.state, work.attempts, work.last_error) == ("waiting", 1, "RuntimeError: boom")
    assert run(kind, succeed(case), at=work.due_at) == 1
    assert case.read() == case.done


def test_work_about_nothing_that_is_known_ends_and_changes_nothing(kind, case):
    DurableWork.objects.update(key="unknown", payload={"unknown": ["\x01", None]})
    assert run(kind) == 1
    assert not DurableWork.objects.exists()
    assert case.read() == case.before


def test_it_is_never_begun_inside_a_transaction(kind, case):
    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"):
        run(kind, die)
    assert case.read() == case.before
