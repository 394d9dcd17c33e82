"""Posted rates: medians of peers, floors, blocks, first days and thin pools."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.auction.prices.posted_rates import (
    RateSettings,
    RateTerms,
    RegisteredNode,
    find_reference_asks,
    post_rates,
)
from scheduler.types import NodeRate, NodeSpec, Task


def listed(provider: str, ask: float, **changes: Any) -> RegisteredNode:
    """Give a node of 10 samples a slot; its ask is per sample."""
    values: dict[str, Any] = {
        "gpu_type": "g",
        "compute_capacity": 10.0,
        "memory_capacity": 10.0,
        **changes,
    }
    name = f"{provider}-{values['gpu_type']}"
    return RegisteredNode(
        NodeSpec(id=name, ask=ask * values["compute_capacity"], **values), provider
    )


def task(name: str, *, bid: float, arrival: int = 0, deadline: int = 3) -> Task:
    """Give a task of 10 samples, a whole node for a slot."""
    return Task(
        id=name,
        arrival_slot=arrival,
        deadline_slot=deadline,
        compute_demand=10.0,
        memory_demand=1.0,
        bid=bid,
        rates={"g": 10.0, "h": 10.0},
    )


def post(nodes: list[RegisteredNode], days: list[list[Task]], **more: Any) -> dict[str, NodeRate]:
    settings = RateSettings(block_slots=2)
    terms = RateTerms(4, base_memory=0.0, settings=settings, **more)
    return post_rates(nodes, days, terms, won={task.id for day in days for task in day})


def test_a_provider_is_held_against_the_median_of_the_others_of_its_type() -> None:
    nodes = [listed("a", 1.0), listed("b", 2.0), listed("c", 3.0), listed("d", 9.0)]
    assert find_reference_asks(nodes) == {
        ("a", "g"): 3.0,
        ("b", "g"): 3.0,
        ("c", "g"): 2.0,
        ("d", "g"): 2.0,
    }


def test_the_median_weighs_asks_by_capacity() -> None:
    nodes = [listed("a", 1.0), listed("b", 2.0, compute_capacity=100.0), listed("c", 9.0)]
    assert find_reference_asks(nodes)["a", "g"] == 2.0
    assert find_reference_asks(nodes)["c", "g"] == 2.0


def test_with_fewer_than_two_others_of_the_type_the_whole_zone_is_the_peers() -> None:
    nodes = [listed("a", 1.0), listed("b", 4.0), *(listed(p, 2.0, gpu_type="h") for p in "cde")]
    assert find_reference_asks(nodes)["a", "g"] == 2.0
    assert find_reference_asks(nodes)["c", "h"] == 2.0


def test_a_provider_alone_in_the_zone_has_the_operators_reference_or_none() -> None:
    nodes = [listed("a", 1.0), listed("a", 5.0, gpu_type="h")]
    assert find_reference_asks(nodes) == {("a", "g"): None, ("a", "h"): None}
    assert find_reference_asks(nodes, reference=2.0)["a", "g"] == 2.0


def test_alone_without_a_reference_a_provider_is_paid_its_ask_up_to_a_cap() -> None:
    days = [[task("t", bid=900.0)]]
    assert post([listed("a", 3.0)], days)["a-g"] == NodeRate(3.0, 3.0, (3.0, 3.0))
    assert post([listed("a", 3.0)], days, cap=2.0)["a-g"] == NodeRate(3.0, 2.0, (2.0, 2.0))
    assert post([listed("a", 3.0)], [], reference=4.0)["a-g"] == NodeRate(3.0, 5.0, (5.0, 5.0))


def test_without_a_past_day_the_rate_is_the_floor_and_those_above_it_overflow() -> None:
    nodes = [listed("a", 1.0), listed("b", 1.0), listed("c", 1.5), listed("d", 2.5)]
    rates = post(nodes, [])
    assert rates["a-g"] == NodeRate(1.0, 1.25 * 1.5, (1.875, 1.875))
    assert rates["c-g"] == NodeRate(1.5, 1.5, (1.5, 1.5))
    # Beyond twice the reference nothing is on sale.
    assert rates["d-g"] == NodeRate(2.5, 1.25, (1.25, 1.25))


def test_a_provider_with_much_of_its_type_does_not_overflow() -> None:
    nodes = [listed("a", 1.0), listed("b", 1.0), listed("c", 1.5, compute_capacity=20.0)]
    assert post(nodes, [])["c-g"].by_block == (1.25, 1.25)


def test_scarce_past_days_raise_the_rate_of_their_block_above_the_floor() -> None:
    nodes = [listed("a", 1.0), listed("b", 1.0), listed("c", 1.0)]
    rush = [task(f"t{n}", bid=100.0, arrival=2, deadline=2) for n in range(9)]
    early, late = post(nodes, [rush])["a-g"].by_block
    assert early == 1.25
    assert late > 3.0


def test_quiet_past_days_leave_the_floor_and_days_are_averaged() -> None:
    nodes = [listed("a", 1.0), listed("b", 1.0), listed("c", 1.0)]
    assert post(nodes, [[task("t", bid=100.0)]])["a-g"].by_block == (1.25, 1.25)
    rush = [task(f"t{n}", bid=100.0, arrival=2, deadline=2) for n in range(9)]
    once = post(nodes, [rush])["a-g"].by_block[1]
    half = post(nodes, [rush, []])["a-g"].by_block[1]
    assert half == pytest.approx((once + 1.0) / 2)
