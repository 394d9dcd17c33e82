"""What is on sale, as arrays, node by node or pooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.auction.search.grid import Floats, Ints
from scheduler.types import NodeSpec, Task


@dataclass(frozen=True, slots=True)
class Supply:
    """Free room by slot and place; a place is a node or a pool of like nodes."""

    #: GPU type of each place.
    types: tuple[str, ...]
    first_slot: int
    #: Samples per slot, slots by places; 0 where nothing is on sale.
    compute: Floats
    #: GB, the base model taken off, slots by places.
    memory: Floats
    #: Ask per sample of each place, or reserves by slot and place.
    ask: Floats

    @property
    def slots(self) -> int:
        return int(self.compute.shape[0])

    @property
    def last_slot(self) -> int:
        return self.first_slot + self.slots - 1


def make_capacity(
    nodes: Sequence[NodeSpec], *, base_memory: float, first_slot: int, slots: int
) -> Supply:
    """Give everything that nodes could sell, each node a place."""
    shape = (slots, len(nodes))
    compute, memory = np.zeros(shape), np.zeros(shape)
    for k, node in enumerate(nodes):
        begin = first_slot if node.available_from is None else node.available_from
        end = first_slot + slots - 1 if node.available_until is None else node.available_until
        rows = slice(max(begin - first_slot, 0), max(end - first_slot + 1, 0))
        compute[rows, k] = node.compute_capacity
        memory[rows, k] = max(node.memory_capacity - base_memory, 0.0)
    return Supply(
        types=tuple(node.gpu_type for node in nodes),
        first_slot=first_slot,
        compute=compute,
        memory=memory,
        ask=np.array(
            [n.ask / n.compute_capacity if n.compute_capacity > 0 else 0.0 for n in nodes]
        ),
    )


def pool_places(supply: Supply) -> tuple[Supply, Ints]:
    """Pool places of one GPU type and ask (the same in every slot, where asks have slots).

    All that fits the places fits the pool, so a bound on the pool's welfare is
    one on theirs.

    Returns
    -------
    pools : Supply
    pool_of : int64[places]
        Pool of each place.
    """
    by_place = supply.ask.T
    keys = list(zip(supply.types, map(_make_key, by_place.tolist()), strict=True))
    distinct = list(dict.fromkeys(keys))
    place = {key: g for g, key in enumerate(distinct)}
    pool_of = np.array([place[key] for key in keys], np.int64)
    shape = (supply.slots, len(distinct))
    compute, memory = np.zeros(shape), np.zeros(shape)
    for k, g in enumerate(pool_of.tolist()):
        compute[:, g] += supply.compute[:, k]
        memory[:, g] += supply.memory[:, k]
    pools = Supply(
        types=tuple(name for name, _ in distinct),
        first_slot=supply.first_slot,
        compute=compute,
        memory=memory,
        ask=by_place[[keys.index(key) for key in distinct]].T,
    )
    return pools, pool_of


def _make_key(ask: float | list[float]) -> float | tuple[float, ...]:
    return tuple(ask) if isinstance(ask, list) else ask


def check_costs(tasks: Sequence[Task]) -> None:
    """Refuse tasks that state operational costs of their own.

    Raises
    ------
    ValueError
        If one does: bounds and forecasts know asks only.
    """
    for task in tasks:
        if task.operational_costs is not None:
            raise ValueError(
                f"task {task.id} states its own operational costs; "
                "bounds and baselines take the nodes' asks: leave operational_costs out"
            )
