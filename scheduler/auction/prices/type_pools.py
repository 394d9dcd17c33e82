"""Room pooled by GPU type, whose nodes share one price of a sample at any ask.

Buyers pay ``max(price, ask)`` for a sample on a node, so at the optimum of the dual (6)
the compute price of a node is ``max(0, price - ask)``: one price for each type and slot
says it all. Prices here are above the lowest ask of the type.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.auction.prices.capacity import Supply, pool_places
from scheduler.auction.search.grid import Floats, Ints

#: Share of an ask below and above it within which a node's room comes on sale. A step
#: there would make prices of few steps jump to and fro.
_RAMP = 0.05


@dataclass(frozen=True, slots=True)
class TypePools:
    """Free room by slot and GPU type."""

    types: tuple[str, ...]
    first_slot: int
    #: Samples and GB, slots by types.
    compute: Floats
    memory: Floats
    #: Lowest ask per sample of each type.
    ask: Floats
    #: Each distinct ask of a type: its type, what it is above the lowest and the ask itself,
    #: once or slot by slot, and its room by slot.
    ask_type: Ints
    extra: Floats
    ask_level: Floats
    room: Floats
    #: What the lowest ask on sale is above the lowest of the type, slots by types.
    floor: Floats

    @property
    def slots(self) -> int:
        return int(self.compute.shape[0])

    @property
    def last_slot(self) -> int:
        return self.first_slot + self.slots - 1

    @property
    def memory_per_sample(self) -> Floats:
        """GB that go with a sample of each type's room, slots by types."""
        return self.memory / np.where(self.compute > 0, self.compute, np.inf)

    def value_room(self, compute_price: Floats, memory_price: Floats) -> float:
        """Give what all room is worth at prices."""
        above = np.maximum(compute_price[:, self.ask_type] - self.extra, 0.0)
        return float(np.sum(self.room * above) + np.sum(self.memory * memory_price))

    def find_offered_share(self, compute_price: Floats) -> Floats:
        """Give the share of each type's room that its nodes sell at prices.

        A node sells from its ask on, within a ramp about it. Those of the lowest ask
        on sale always do: no price is below it.
        """
        above = compute_price[:, self.ask_type] - self.extra
        width = 2.0 * _RAMP * self.ask_level
        share = np.clip(above / np.where(width > 0, width, 1.0) + 0.5, 0.0, 1.0)
        share = np.where(self.extra <= self.floor[:, self.ask_type], 1.0, share)
        return self._add_up(self.room * share) / np.where(self.compute > 0, self.compute, 1.0)

    def _add_up(self, room: Floats) -> Floats:
        total = np.zeros_like(self.compute)
        for place, g in enumerate(self.ask_type.tolist()):
            total[:, g] += room[:, place]
        return total


def pool_by_type(supply: Supply) -> tuple[TypePools, Ints]:
    """Pool places of one GPU type.

    All that fits the places fits the pool, so a bound on the pool's welfare is
    one on theirs.

    Returns
    -------
    pools : TypePools
    type_of : int64[places]
        Pool of each place.
    """
    by_ask, ask_of = pool_places(supply)
    types = list(dict.fromkeys(by_ask.types))
    ask_type = np.array([types.index(name) for name in by_ask.types], np.int64)
    asks = np.atleast_2d(by_ask.ask)
    lowest = np.full(len(types), np.inf)
    np.minimum.at(lowest, ask_type, asks.min(axis=0))
    extra = asks - lowest[ask_type]
    shape = (supply.slots, len(types))
    compute, memory, floor = np.zeros(shape), np.zeros(shape), np.full(shape, np.inf)
    for place, g in enumerate(ask_type.tolist()):
        compute[:, g] += by_ask.compute[:, place]
        memory[:, g] += by_ask.memory[:, place]
        on_sale = by_ask.compute[:, place] > 0
        floor[:, g] = np.where(on_sale, np.minimum(floor[:, g], extra[:, place]), floor[:, g])
    pools = TypePools(
        types=tuple(types),
        first_slot=supply.first_slot,
        compute=compute,
        memory=memory,
        ask=lowest,
        ask_type=ask_type,
        extra=extra,
        ask_level=asks,
        room=by_ask.compute,
        floor=np.where(np.isfinite(floor), floor, 0.0),
    )
    return pools, ask_type[ask_of]
