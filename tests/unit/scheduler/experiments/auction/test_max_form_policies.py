"""Max prices of one node, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.log import events
from scheduler.experiments.auction.max_form.engine import make_engine
from scheduler.experiments.auction.max_form.policies import max_form_rules
from scheduler.types import NodeSpec
from tests.unit.scheduler.auction.builders import decide, node, task


def residual_zone(of: NodeSpec, *, base_memory: float = 0.0, **parameters: Any) -> Engine:
    """Give a zone of one node and 6 slots whose prices rise with every sale."""
    rules = ZoneRules(
        policy="residual",
        horizon_slots=6,
        base_memory=base_memory,
        settings=max_form_rules(**parameters),
    )
    engine = make_engine(rules)
    engine.apply(events.NodeJoined(of))
    return engine


def test_prices_rise_by_equations_7_and_8() -> None:
    engine = residual_zone(
        node(base := "n", memory_capacity=12.0),
        base_memory=2.0,
        alpha=0.5,
        beta=0.25,
        money_scale=1.0,
    )
    decide(engine, task())
    density = 100.0 / (2 * 4.0 + 2 * 2.0)
    prices = engine.prices()
    assert prices.node_ids == (base,)
    assert prices.compute_price[0, 0] == pytest.approx(0.5 * density * 4.0 / 10.0)
    assert prices.memory_price[0, 0] == pytest.approx(0.25 * density * 2.0 / 10.0)
    assert prices.compute_price[0, 2] == 0.0
    assert prices.compute_sold[0].tolist() == pytest.approx([0.4, 0.4, 0, 0, 0, 0])
    # Two other cells are free of charge, so the next task goes there; the one
    # after it has to pay for the first two again.
    second = decide(engine, task("second"))
    assert second.schedule is not None
    assert second.schedule.start_slot == 2
    decide(engine, task("third"))
    first = prices.compute_price[0, 0]
    decide(engine, task("fourth"))
    again = engine.prices().compute_price[0, 0]
    paid = 8.0 * first + 4.0 * prices.memory_price[0, 0]
    value = 100.0
    assert again == pytest.approx(first * 1.4 + 0.5 * (value / 12.0) * 0.4)
    assert paid < value


def test_running_maxima_hold_decided_bids_only() -> None:
    engine = residual_zone(node(), money_scale=1.0)
    dear = task(bid=1e6)
    first = decide(engine, dear)
    assert first.payment == 0.0
    quote = engine.quote(replace(dear, id="next", deadline_slot=1), slot=0)
    assert quote.price is not None
    assert quote.price > 0
