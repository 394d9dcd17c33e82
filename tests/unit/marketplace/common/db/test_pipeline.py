"""Statements of our own: what is written together is as good as written one by one."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.transaction import TransactionManagementError

from marketplace.common.db.pipeline import (
    Statement,
    ensure_transaction,
    execute,
    fetch,
    pipeline,
    send,
)
from marketplace.fleet.models import GpuType

pytestmark = pytest.mark.django_db

NAMES = Statement("SELECT name FROM fleet_gputype WHERE name LIKE 'made-%%' ORDER BY name")


def made(name: str) -> Statement:
    return Statement("INSERT INTO fleet_gputype (name, created_at) VALUES (%s, now())", (name,))


def names() -> list[str]:
    return [name for (name,) in fetch(NAMES)[0]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many statements each message held."""
    from marketplace.common.db import pipeline

    counts: list[int] = []
    real = pipeline._run

    def counted(group):
        counts.append(len(group))
        return real(group)

    monkeypatch.setattr(pipeline, "_run", counted)
    return counts


def test_questions_are_answered_in_their_order_each_after_those_before_it() -> None:
    before, _, after = fetch(NAMES, made("made-a"), NAMES)
    assert (before, after) == ([], [("made-a",)])


def test_values_are_never_part_of_the_text() -> None:
    name = "made-'; DROP TABLE fleet_gputype; --%s"
    send(made(name))
    assert names() == [name]


def test_writes_of_a_block_are_one_message_at_its_end(sent: list[int]) -> None:
    with transaction.atomic(), pipeline():
        for name in "abc":
            send(made(f"made-{name}"))
        assert sent == []
    assert sent == [3]
    assert names() == ["made-a", "made-b", "made-c"]


def test_a_question_comes_after_what_was_written_and_shares_its_message(sent: list[int]) -> None:
    with transaction.atomic(), pipeline():
        send(made("made-a"))
        assert names() == ["made-a"]
        send(made("made-b"))
        assert execute(Statement("DELETE FROM fleet_gputype WHERE name LIKE 'made-%%'")) == 2
    assert sent == [2, 2]


def test_whatever_django_asks_comes_after_what_was_written() -> None:
    with transaction.atomic(), pipeline():
        send(made("made-a"))
        assert GpuType.objects.filter(name="made-a").exists()
        send(made("made-b"))
        try:
            with transaction.atomic():
                send(made("made-c"))
                raise RuntimeError
        except RuntimeError:
            pass
        send(made("made-d"))
    assert names() == ["made-a", "made-b", "made-d"]


def test_outside_a_block_writes_are_sent_at_once(sent: list[int]) -> None:
    send(made("made-a"))
    assert sent == [1]


def test_writes_wait_in_a_transaction_only(transactional_db: None) -> None:
    with pytest.raises(TransactionManagementError), pipeline():
        raise AssertionError("the block was entered")


def test_an_inner_block_is_part_of_the_outer_one(sent: list[int]) -> None:
    with transaction.atomic(), pipeline():
        with pipeline():
            send(made("made-a"))
        send(made("made-b"))
        assert sent == []
    assert sent == [2]


def test_refusal_by_the_database_undoes_the_block_and_leaves_the_connection_usable() -> None:
    send(made("made-a"))

    def refused() -> None:
        with transaction.atomic(), pipeline():
            for name in ("made-b", "made-a", "made-c"):
                send(made(name))

    for _ in range(3):
        with pytest.raises(IntegrityError, match="made-a"):
            refused()
        assert names() == ["made-a"]
    with transaction.atomic(), pipeline():
        send(made("made-b"))
        send(made("made-c"))
    assert names() == ["made-a", "made-b", "made-c"]


def test_refusal_of_one_question_of_several_is_the_one_that_is_raised() -> None:
    send(made("made-a"))
    with pytest.raises(IntegrityError, match="made-a"), transaction.atomic():
        fetch(NAMES, made("made-a"), NAMES)
    assert names() == ["made-a"]


def test_after_a_refusal_nothing_is_asked_until_the_transaction_is_undone() -> None:
    with transaction.atomic():
        connection.set_rollback(True)
        with pytest.raises(TransactionManagementError):
            fetch(NAMES)
        connection.set_rollback(False)


def test_block_that_fails_sends_nothing_of_what_waits(sent: list[int]) -> None:
    def failing() -> None:
        with transaction.atomic(), pipeline():
            send(made("made-a"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()
    assert sent == []
    send(made("made-b"))
    assert names() == ["made-b"]


def test_block_takes_the_transaction_under_way_or_has_its_own(transactional_db: None) -> None:
    with ensure_transaction():
        assert connection.in_atomic_block
        savepoints = list(connection.savepoint_ids)
        with ensure_transaction():
            assert connection.savepoint_ids == savepoints
    assert not connection.in_atomic_block
