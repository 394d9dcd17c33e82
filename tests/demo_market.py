"""The demo's small market, as browser tests, fault tests and benchmarks open it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from marketplace.embedded.demo.opening import NODE, DemoNode, bring_nodes, seed
from marketplace.embedded.house import House


def open_market(
    running: House, *, nodes: Sequence[DemoNode] = (NODE,), say: Callable[[str], None]
) -> dict[str, Any]:
    """Seed the small market and bring its nodes online; safe to repeat."""
    seeded = seed(running, nodes=nodes, say=say)
    bring_nodes(running, seeded, nodes=nodes, say=say)
    return seeded
