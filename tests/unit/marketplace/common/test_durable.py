"""What the mechanism of durable work promises, with a kind of its own."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from marketplace.common.backoff import build_backoff
from marketplace.common.durable.kinds import Failure, WorkFailed, WorkKind, get_kinds, register_kind
from marketplace.common.durable.run import run_due_work
from marketplace.common.durable.selectors import (
    KindSummary,
    list_troubled_work,
    summarize_kinds,
)
from marketplace.common.durable.services import (
    FAILED_FOR,
    NewWork,
    enqueue_work,
    extend_lease,
    restart_work,
    schedule_work,
    sweep_work,
    try_again,
)
from marketplace.common.errors import StorageUnavailable
from marketplace.common.models import DurableWork, WorkState
from tests.builders import NOW

pytestmark = pytest.mark.django_db(transaction=True)
LEASE = timedelta(minutes=1)


@pytest.fixture
def done() -> list[Any]:
    return []


@pytest.fixture
def kind(done) -> WorkKind:
    return WorkKind(
        name="tests.note",
        load=lambda work: work,
        do=lambda work, _: (work.key, dict(work.payload)),
        apply=lambda _work, _loaded, result, *, now: done.append(result),
        backoff=build_backoff(first=timedelta(seconds=10), most=timedelta(minutes=1), attempts=3),
        lease=LEASE,
    )


def run(kind: WorkKind, at: datetime = NOW, **changed: Any) -> int:
    return run_due_work(replace(kind, **changed), clock=lambda: at)


def add(key: str = "a", *, owner: str = "", due_at: datetime = NOW, **payload: Any) -> None:
    enqueue_work(NewWork("tests.note", key, due_at=due_at, payload=payload, owner=owner))


def test_work_asked_for_twice_is_done_once_with_what_was_asked_first(kind, done):
    add(n=1)
    add(n=2, due_at=NOW + LEASE)
    assert run(kind) == 1
    assert done == [("a", {"n": 1})]
    assert run(kind, NOW + LEASE) == 0


def test_what_is_due_longest_comes_first_and_owners_take_turns(kind, done):
    add("a1", owner="a", due_at=NOW - timedelta(seconds=4))
    add("a2", owner="a", due_at=NOW - timedelta(seconds=3))
    add("b1", owner="b", due_at=NOW - timedelta(seconds=2))
    add("a3", owner="a", due_at=NOW - timedelta(seconds=1))
    assert run(kind, batch=3) == 3
    assert [key for key, _ in done] == ["a1", "a2", "b1"]
    done.clear()
    add("b2", owner="b")
    assert run(kind, batch=1) == 1
    assert [key for key, _ in done] == ["a3"]


def test_what_is_wanted_first_goes_first(kind, done):
    for key, hours in (("late", 3), ("early", 1), ("later", 5)):
        wanted = NOW + timedelta(hours=hours)
        enqueue_work(NewWork("tests.note", key, due_at=NOW, deadline=wanted))
    add("none")
    assert run(kind, batch=3) == 3
    assert [key for key, _ in done] == ["none", "early", "late"]


def test_workers_together_have_no_more_than_the_kind_allows(kind):
    for key in "abcd":
        add(key, owner="one" if key == "d" else "many")
    limits = {"batch": 8, "at_once": 3, "at_once_per_owner": 2}
    seen: list[str] = []

    def look(work: Any, _: Any) -> None:
        seen.append(work.key)

    # A worker that has "a" while another takes what it may.
    def take_more(work: Any, _: Any) -> None:
        seen.append(work.key)
        assert run(kind, do=look, **limits) == 2

    assert run(kind, do=take_more, batch=1) == 1
    assert seen[0] == "a"
    # Of the first owner one is held already.
    assert sorted(seen[1:]) == ["b", "d"]


def test_a_storage_that_is_away_is_asked_for_one_piece_and_puts_off_all_that_are_due(kind, done):
    for key in "ab":
        add(key)
    add("later", due_at=NOW + timedelta(seconds=20))
    assert run(kind, do=_raise(StorageUnavailable("it does not answer"))) == 1
    assert run(kind, batch=8) == 0
    again = NOW + timedelta(seconds=10)
    rows = DurableWork.objects.order_by("key").values_list("key", "due_at", "attempts")
    assert list(rows) == [
        ("a", again, 1),
        ("b", again, 0),
        ("later", NOW + timedelta(seconds=20), 0),
    ]
    assert run(kind, again, do=_raise(StorageUnavailable("not this one"))) == 1
    # One piece that is always refused keeps no other from its turn.
    then = again + timedelta(seconds=10)
    assert DurableWork.objects.get(key="a").due_at == then + timedelta(seconds=10)
    assert run(kind, then, batch=8) == 2
    assert [key for key, _ in done] == ["b", "later"]


def test_work_that_is_due_again_begins_with_no_failures(kind):
    add()
    run(kind, do=_raise(WorkFailed("no")))
    later = NOW + timedelta(seconds=10)
    assert run(kind, later, apply=lambda *_, now: now + LEASE) == 1
    row = DurableWork.objects.get()
    assert (row.attempts, row.last_error, row.due_at) == (0, "", later + LEASE)


def test_a_reason_is_told_and_a_final_one_ends_the_work(kind):
    told: list[Failure] = []

    def hear(_work: Any, failure: Failure, *, now: datetime) -> None:
        told.append(failure)

    add()
    run(kind, do=_raise(WorkFailed("not yet\0")), fail=hear)
    row = DurableWork.objects.get()
    assert (row.last_error, row.due_at) == ("not yet", NOW + timedelta(seconds=10))
    run(kind, row.due_at, do=_raise(WorkFailed("never", is_final=True)), fail=hear)
    assert [(each.reason, each.retry_at) for each in told] == [
        ("not yet\0", row.due_at),
        ("never", None),
    ]
    assert not DurableWork.objects.exists()


def test_the_last_reason_ends_the_work_and_a_fault_of_ours_stays_for_the_operator(kind, done):
    add("a")
    add("b")
    at = NOW
    for wait in (10, 20, 0):
        run(kind, at, do=_raise(WorkFailed("no")))
        run(kind, at, do=_raise(ValueError("a secret")))
        at += timedelta(seconds=wait)
    [failed] = list_troubled_work(limit=9)
    assert (failed.key, failed.state) == ("b", WorkState.FAILED)
    assert failed.last_error == "ValueError: a secret"
    assert run(kind, at + timedelta(days=9)) == 0
    assert try_again(work_id=failed.pk, now=at)
    assert run(kind, at) == 1
    assert done == [("b", {})]
    assert not try_again(work_id=failed.pk, now=at)


def test_work_that_kills_its_workers_is_given_up(kind):
    add()
    told: list[Failure] = []

    def hear(_work: Any, failure: Failure, *, now: datetime) -> None:
        told.append(failure)

    for attempt in range(3):
        with pytest.raises(KeyboardInterrupt):
            run(kind, NOW + attempt * LEASE, do=_raise(KeyboardInterrupt()))
    assert run(kind, NOW + 3 * LEASE, do=_raise(KeyboardInterrupt()), fail=hear) == 1
    assert [(each.reason, each.retry_at) for each in told] == [
        ("The market failed. The fault is ours.", None)
    ]
    row = DurableWork.objects.get()
    assert (row.state, row.last_error) == (
        "failed",
        "WorkerLost: The worker of the last attempt died.",
    )


def test_a_lease_is_extended_while_it_is_held_and_not_after(kind, done):
    add()

    def work_long(work: Any, _: Any) -> Any:
        assert extend_lease(work, now=NOW + LEASE)
        assert run(kind, NOW + 1.5 * LEASE) == 0
        assert run(kind, NOW + 2 * LEASE) == 1
        assert not extend_lease(work, now=NOW + 2 * LEASE)
        return "late", {}

    late: list[Any] = []
    assert run(kind, do=work_long, discard=late.append) == 1
    assert (done, late) == ([("a", {})], [("late", {})])


def test_work_that_begins_again_takes_no_result_of_before(kind, done):
    add(n=1)

    def be_restarted(work: Any, _: Any) -> Any:
        restart_work(NewWork("tests.note", "a", due_at=NOW, payload={"n": 2}))
        return work.key, dict(work.payload)

    assert run(kind, do=be_restarted) == 1
    assert done == []
    assert run(kind) == 1
    assert done == [("a", {"n": 2})]


def test_an_error_that_cannot_be_stored_costs_a_lease_and_no_other_work(kind, done):
    add("a", due_at=NOW - LEASE)
    add("b")

    def break_first(work: Any, _: Any) -> Any:
        if work.key == "a":
            raise ValueError("a")
        return work.key, {}

    def break_too(*_: Any, **__: Any) -> None:
        raise ValueError("b")

    assert run(kind, do=break_first, fail=break_too, batch=2) == 2
    assert done == [("b", {})]
    assert DurableWork.objects.get().lease_until == NOW + LEASE


def test_what_was_committed_before_its_answer_was_lost_is_kept(kind):
    lost: list[Any] = []

    def commit_and_break(*_: Any, **__: Any) -> None:
        transaction.on_commit(lambda: 1 / 0)

    def break_before(*_: Any, **__: Any) -> None:
        raise ValueError("not stored")

    add()
    assert run(kind, apply=break_before, discard=lost.append) == 1
    assert lost == [("a", {})]
    later = NOW + LEASE
    assert run(kind, later, apply=commit_and_break, discard=lost.append) == 1
    assert lost == [("a", {})]
    assert not DurableWork.objects.exists()


def test_the_sweep_wakes_a_worker_of_each_kind_that_is_due_and_forgets_old_failures(
    monkeypatch, kind
):
    woken: list[str] = []
    target = "marketplace.common.durable.services.enqueue"
    monkeypatch.setattr(target, lambda name, **_: woken.append(name))
    known = sorted(get_kinds())[0]
    schedule_work(NewWork(known, "later", due_at=NOW + LEASE))
    assert woken == []
    enqueue_work(NewWork(known, "due", due_at=NOW), NewWork("tests.unknown", "due", due_at=NOW))
    assert woken == [known, "tests.unknown"]
    woken.clear()
    sweep_work(now=NOW - LEASE)
    assert woken == []
    sweep_work(now=NOW)
    assert woken == [known]
    DurableWork.objects.filter(kind=known).update(state=WorkState.FAILED)
    sweep_work(now=NOW + FAILED_FOR)
    assert set(DurableWork.objects.values_list("kind", "key")) == {
        (known, "later"),
        ("tests.unknown", "due"),
    }


def test_the_operator_sees_what_waits_runs_is_late_and_has_failed(kind):
    add("late", due_at=NOW - timedelta(minutes=1))
    add("waits", due_at=NOW)
    add("later", due_at=NOW + LEASE)
    add("failed", due_at=NOW)
    DurableWork.objects.filter(key="failed").update(state=WorkState.FAILED, last_error="no")
    add("runs", due_at=NOW)
    DurableWork.objects.filter(key="runs").update(lease_token="x", lease_until=NOW + LEASE)
    summary = {each.kind: each for each in summarize_kinds(now=NOW)}
    assert summary.pop("tests.note") == KindSummary(
        "tests.note", waiting=3, running=1, late=1, failed=1
    )
    assert summary == {name: KindSummary(name) for name in get_kinds()}


def test_two_kinds_of_one_name_are_refused():
    with pytest.raises(ValueError, match="already"):
        register_kind(next(iter(get_kinds().values())))


def _raise(error: BaseException) -> Any:
    def do(*_: Any) -> None:
        raise error

    return do
