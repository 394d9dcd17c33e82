"""Asks of the house's own nodes, which rise as a day begins and at no other time.

Else they could rise when a bid is seen. A node that leaves and joins again asks no more for a
sample than it did, until a whole day has passed without it. A new one may ask anything: without it,
prices would be no lower.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from scheduler.types import NodeSpec


@dataclass(frozen=True, slots=True)
class HouseAsks:
    """What the house's own nodes ask, as the log has it."""

    #: The house's nodes as they were last on sale, each with the day of that.
    known: Mapping[str, tuple[int, NodeSpec]] = field(
        default_factory=dict[str, tuple[int, NodeSpec]]
    )
    #: Whether the day has just begun.
    may_rise: bool = True

    def find_most(self, node: NodeSpec, *, before: NodeSpec | None) -> float:
        """Give the most that a node may ask now for a whole slot.

        Parameters
        ----------
        node : NodeSpec
            As it joins or changes to.
        before : NodeSpec, optional
            As it is on sale.
        """
        last = self.known[node.id][1] if node.id in self.known else before
        if self.may_rise or not (node.is_own or node.id in self.known):
            return math.inf
        if last is None:
            return math.inf
        if last.compute_capacity in (0.0, node.compute_capacity):
            return last.ask
        return last.ask * (node.compute_capacity / last.compute_capacity)

    def take(self, node: NodeSpec, *, before: NodeSpec | None, day: int) -> HouseAsks:
        """Note a node that joins or changes on a day.

        Raises
        ------
        ValueError
            If it asks more than it may.
        """
        if node.ask > self.find_most(node, before=before):
            raise ValueError(f"the house's own ask of node {node.id} rose within a day")
        if not (node.is_own or node.id in self.known):
            return self
        return replace(self, known={**self.known, node.id: (day, node)})

    def begin_day(self, day: int, nodes: Iterable[NodeSpec]) -> HouseAsks:
        """Let asks rise, and forget nodes that were not on sale on the day before either."""
        left = {name: seen for name, seen in self.known.items() if seen[0] >= day - 1}
        return HouseAsks({**left, **{node.id: (day, node) for node in nodes if node.is_own}})

    def close(self) -> HouseAsks:
        """Let asks rise no more until the next day begins."""
        return replace(self, may_rise=False) if self.may_rise else self
