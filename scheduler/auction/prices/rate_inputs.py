"""Posted rates as a log's event names what they are made from, and made again from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from math import inf
from typing import Any

from scheduler.auction.prices.forecast_span import ForecastSpan
from scheduler.auction.prices.posted_rates import (
    RateSettings,
    RateTerms,
    RegisteredNode,
    find_joined_rates,
    post_rates,
)
from scheduler.auction.prices.solve import SOLVER
from scheduler.types import NodeRate, NodeSpec, Task


def choose_rate_span(*, day_start: int, day_slots: int, began: int, past_days: int) -> ForecastSpan:
    """Give the whole days before the one that begins at ``day_start``, as far as a log goes back.

    Parameters
    ----------
    day_start, day_slots : int
        First slot of the day that rates are for, and its length.
    began : int
        The slot in which the log begins.
    past_days : int
        Days looked at.
    """
    starts = [day_start - back * day_slots for back in range(1, past_days + 1)]
    return ForecastSpan(
        day_start=day_start,
        slot=day_start,
        last_slot=day_start + day_slots - 1,
        past_starts=tuple(start for start in starts if start > began),
    )


def describe_inputs(
    registered: Sequence[RegisteredNode],
    *,
    base_memory: float,
    zone_settings: Mapping[str, Any],
    settings: RateSettings,
) -> dict[str, Any]:
    """Give what an event says of that which rates are made from, past days left out."""
    return {
        "solver": SOLVER,
        "registered": [write_row(each) for each in registered],
        "base_memory": base_memory,
        "reference": zone_settings.get("reference_rate_micros"),
        "cap": zone_settings.get("ask_cap_micros"),
        "settings": asdict(settings),
    }


def find_rates_of(
    inputs: Mapping[str, Any],
    *,
    past_days: Sequence[Sequence[Task]],
    day_slots: int,
    won: Collection[str] = frozenset(),
) -> dict[str, NodeRate]:
    """Give the rates that follow from an event's inputs and the bids they name."""
    registered = [read_row(row) for row in inputs["registered"]]
    return post_rates(registered, past_days, _read_terms(inputs, day_slots), won=won)


def find_rates_of_joined(
    inputs: Mapping[str, Any], *, rates: Mapping[str, NodeRate], day_slots: int
) -> dict[str, NodeRate]:
    """Give the rates of the nodes that joined last, from an event's inputs and the others'."""
    *earlier, last = inputs["joined_rows"]
    joined = [read_row(row) for row in last]
    again = {each.node.id for each in joined}
    before = [read_row(row) for rows in (inputs["registered"], *earlier) for row in rows]
    return find_joined_rates(
        joined,
        [each for each in before if each.node.id not in again],
        rates,
        _read_terms(inputs, day_slots),
        knows_days=bool(inputs.get("past_starts")),
    )


def _read_terms(inputs: Mapping[str, Any], day_slots: int) -> RateTerms:
    cap = inputs["cap"]
    return RateTerms(
        day_slots=day_slots,
        base_memory=float(inputs["base_memory"]),
        reference=inputs["reference"],
        cap=inf if cap is None else float(cap),
        settings=RateSettings(**inputs["settings"]),
    )


def find_other_terms(rows: Sequence[Sequence[Any]], nodes: Sequence[NodeSpec]) -> str | None:
    """Give a node that a list names with other terms than it has on sale, if there is one."""
    listed = {row[0]: list(row[2:]) for row in rows}
    for node in nodes:
        terms = [node.gpu_type, node.compute_capacity, node.memory_capacity, node.ask]
        if listed.get(node.id, terms) != terms:
            return node.id
    return None


def write_row(each: RegisteredNode) -> list[Any]:
    """Give a node, its provider and its terms as plain JSON values."""
    node = each.node
    return [
        node.id,
        each.provider,
        node.gpu_type,
        float(node.compute_capacity),
        float(node.memory_capacity),
        float(node.ask),
    ]


def read_row(row: Sequence[Any]) -> RegisteredNode:
    """Read what ``write_row`` wrote."""
    node_id, provider, gpu_type, capacity, memory, ask = row
    return RegisteredNode(
        NodeSpec(
            id=str(node_id),
            gpu_type=str(gpu_type),
            compute_capacity=float(capacity),
            memory_capacity=float(memory),
            ask=float(ask),
        ),
        str(provider),
    )
