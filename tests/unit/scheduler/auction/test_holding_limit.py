"""How much of a new zone one organisation may hold."""

from __future__ import annotations

from math import inf

from scheduler.auction.holding_limit import find_most_held


def test_one_organisation_may_hold_a_quarter_of_a_zone_or_one_node() -> None:
    assert find_most_held([10.0] * 8, slots=6) == 120.0
    assert find_most_held([30.0, 10.0, 10.0], slots=6) == 180.0


def test_a_zone_of_one_node_has_no_limit() -> None:
    assert find_most_held([10.0], slots=6) == inf
    assert find_most_held([], slots=6) == inf
