"""Which of the packs in flight goes on, and at which part: list scheduling by counted tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from workers.protocol.part_memory import count_held_packs

#: A backward pass takes so many times what its forward pass does.
BACKWARD_COST = 2.0


class Pass(Protocol):
    """A pass under way; see ``PartPass``."""

    @property
    def part(self) -> int: ...
    @property
    def is_forward(self) -> bool: ...
    @property
    def is_loss(self) -> bool: ...
    def holds(self, part: int) -> bool: ...


class PackUnderWay(Protocol):
    """A pack under way."""

    tokens: int
    #: When its last unit ends on the clock, or it could begin.
    at: float

    @property
    def way(self) -> Pass: ...


F = TypeVar("F", bound=PackUnderWay)


class PartClock:
    """When each part is free again, if a token takes a block one unit of time.

    The host launches units in this order and does not wait for them, so what the clock says is what
    devices of one kind do.

    Parameters
    ----------
    blocks : sequence of int
        Of each part.
    head : float
        How many blocks the output layer counts as; it is on the last part.
    """

    def __init__(self, blocks: Sequence[int], *, head: float) -> None:
        self.blocks = tuple(blocks)
        self._head = head
        self._free_at = [0.0] * len(blocks)
        self._busy = [0.0] * len(blocks)

    @property
    def window(self) -> int:
        """Packs in flight at most: one for each part."""
        return len(self.blocks)

    @property
    def busy_share(self) -> float:
        """Of the parts' time so far."""
        return sum(self._busy) / len(self._busy) / max(self._free_at)

    def choose(self, flights: Sequence[F]) -> F:
        """The flight whose next unit can begin first; then a backward pass, then the oldest.

        A forward pass waits while its part holds as many packs as it may.
        """
        best, chosen = None, None
        for flight in flights:
            way = flight.way
            part = way.part
            if way.is_forward and not way.is_loss:
                held = sum(other.way.holds(part) for other in flights)
                if held >= count_held_packs(len(self.blocks), part):
                    continue
            key = max(self._free_at[part], flight.at), way.is_forward
            if best is None or key < best:
                best, chosen = key, flight
        assert chosen is not None, "a backward pass never waits"
        return chosen

    def note(self, flight: PackUnderWay) -> None:
        """Count the unit that the flight does next."""
        way, part = flight.way, flight.way.part
        if way.is_loss:
            cost = (1 + BACKWARD_COST) * self._head
        else:
            cost = self.blocks[part] * (1 if way.is_forward else BACKWARD_COST)
        cost *= flight.tokens
        flight.at = self._free_at[part] = max(self._free_at[part], flight.at) + cost
        self._busy[part] += cost
