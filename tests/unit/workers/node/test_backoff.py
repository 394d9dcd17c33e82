"""Waits double up to the longest, at random around that, and begin again after a success."""

from __future__ import annotations

from workers.node.backoff import Backoff


def test_waits_double_up_to_the_longest_and_begin_again() -> None:
    backoff = Backoff(first_s=1.0, longest_s=4.0)
    for middle in (1.0, 2.0, 4.0, 4.0):
        assert 0.5 * middle <= backoff.next_wait_s() <= 1.5 * middle
    backoff.reset()
    assert 0.5 <= backoff.next_wait_s() <= 1.5


def test_two_nodes_do_not_come_back_at_the_same_moment() -> None:
    one, other = (Backoff(first_s=1.0, longest_s=60.0) for _ in range(2))
    assert [one.next_wait_s() for _ in range(3)] != [other.next_wait_s() for _ in range(3)]
