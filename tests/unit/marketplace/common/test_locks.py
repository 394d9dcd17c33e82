from threading import Event, Thread

import pytest
from django.db import connection, connections, transaction

from marketplace.common.locks import advisory_lock, advisory_session_lock, lock_number

pytestmark = pytest.mark.django_db(transaction=True)


class Elsewhere:
    """Holds a lock from another connection until told to let go."""

    def __init__(self, lock, *args: str) -> None:
        self.holding = Event()
        self.let_go = Event()
        self.thread = Thread(target=self._hold, args=(lock, *args))

    def __enter__(self) -> "Elsewhere":
        self.thread.start()
        assert self.holding.wait(10)
        return self

    def __exit__(self, *exc: object) -> None:
        self.let_go.set()
        self.thread.join(10)
        assert not self.thread.is_alive()

    def _hold(self, lock, *args: str) -> None:
        try:
            with lock(*args, wait=True):
                self.holding.set()
                assert self.let_go.wait(30)
        finally:
            connections.close_all()


@pytest.mark.parametrize("lock", [advisory_lock, advisory_session_lock])
def test_a_lock_held_elsewhere_is_not_got_without_waiting(lock) -> None:
    with Elsewhere(lock, "zone", "a"):
        with lock("zone", "a", wait=False) as held:
            assert held is False
        with lock("zone", "b", wait=False) as held:
            assert held is True
        with lock("other", "a", wait=False) as held:
            assert held is True
    with lock("zone", "a", wait=False) as held:
        assert held is True


def test_both_variants_keep_each_other_out() -> None:
    with (
        Elsewhere(advisory_session_lock, "zone", "a"),
        advisory_lock("zone", "a", wait=False) as held,
    ):
        assert held is False


def test_the_lock_lasts_until_the_outermost_transaction_ends() -> None:
    with transaction.atomic():
        with advisory_lock("zone", "a", wait=True) as held:
            assert held is True
        assert _free_for_others("zone", "a") is False
    assert _free_for_others("zone", "a") is True


def test_a_failure_inside_gives_the_lock_back() -> None:
    for lock in (advisory_lock, advisory_session_lock):
        with pytest.raises(KeyError), lock("zone", "a", wait=True):
            raise KeyError("anything")
        assert _free_for_others("zone", "a") is True


def test_a_session_lock_outlives_transactions() -> None:
    with advisory_session_lock("lane", "a", wait=True):
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        assert _free_for_others("lane", "a") is False
    assert _free_for_others("lane", "a") is True


def test_lock_numbers_fit_and_do_not_run_together() -> None:
    assert -(2**63) <= lock_number("zone", "a") < 2**63
    assert lock_number("ab", "c") != lock_number("a", "bc")


def _free_for_others(namespace: str, key: str) -> bool:
    found: list[bool] = []

    def look() -> None:
        try:
            with advisory_lock(namespace, key, wait=False) as held:
                found.append(held)
        finally:
            connections.close_all()

    thread = Thread(target=look)
    thread.start()
    thread.join(10)
    return found[0]
