"""The cells on sale in one zone: capacity, prices and reservations.

Rows are slots from ``first_slot`` on, columns are nodes in the order they
joined. A cell that is not on sale has minus infinity free.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.auction.search.holdings import CellReservation, HeldCell, TaskHolding
from scheduler.auction.search.vendor_book import VendorBook
from scheduler.auction.search.waste import WASTE_UNITS, measure_unfilled
from scheduler.types import Cell, Horizon, NodeSpec

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: Share of a capacity by which sums of floats may exceed it.
TOLERANCE = 1e-9
#: Tables of a grid, slots by nodes, that change in place.
_CELL_TABLES = (
    *("compute_price", "memory_price", "reserve_price"),
    *("compute_free", "memory_free", "load"),
)


class Grid:
    """Mutable arrays behind the engine; nothing outside the package holds one."""

    def __init__(self, *, horizon: Horizon, base_memory: float) -> None:
        self.first_slot = horizon.first_slot
        self.slots = horizon.slots
        self.base_memory = base_memory
        self.nodes: list[NodeSpec] = []
        self.column: dict[str, int] = {}
        #: GPU types in order of first appearance, and each node's index.
        self.types: list[str] = []
        self.node_type: Ints = np.empty(0, np.int64)
        self.compute_capacity: Floats = np.empty(0)
        #: Base model taken off.
        self.memory_capacity: Floats = np.empty(0)
        #: Ask per sample: operational cost of a cell is this times the rate.
        self.ask_per_sample: Floats = np.empty(0)
        #: What is paid for a sample instead where rates are posted, slots by nodes; infinite
        #: where the node asks more and does not sell. No rows: asks are paid.
        self.reserve_price: Floats = np.empty((0, 0))
        #: GB by which sums may exceed a node's capacity; minus infinity where the
        #: base model leaves nothing.
        self.memory_slack: Floats = np.empty(0)
        #: What tasks of the same rates have in common, until the nodes change.
        self.by_rates: dict[tuple[bool, tuple[tuple[str, float], ...]], Any] = {}
        self.is_verified: NDArray[np.bool_] = np.empty(0, np.bool_)
        #: Admitted tasks that run on verified nodes only, and the slot until which that is known.
        self.verified_only: dict[str, int] = {}
        shape = (self.slots, 0)
        self.compute_price: Floats = np.empty(shape)
        self.memory_price: Floats = np.empty(shape)
        self.compute_free: Floats = np.empty(shape)
        self.memory_free: Floats = np.empty(shape)
        #: Tasks per cell.
        self.load: Ints = np.empty(shape, np.int64)
        #: What labour vendors have to do; nodes and vendors share the slots.
        self.vendors = VendorBook()
        #: Usual rates by GPU type, for packing; see ``pack_by``.
        self.usual_rates: dict[str, tuple[float, ...]] = {}
        #: See ``PricesSolved.own_asks``.
        self.own_asks = False
        self.waste: Floats = np.empty((0, 0))
        self.waste_unit: Floats = np.empty(0)
        #: What tasks hold, in order of admission. Cells of past slots stay until the
        #: task's last one is past.
        self.holds: dict[str, TaskHolding] = {}
        #: Tasks by a last slot they have or had; ``advance`` looks at those alone.
        self._ending: dict[int, list[str]] = {}
        #: One object for each cell named so far, by slot and column.
        self._cells: dict[int, Cell] = {}

    def copy(self) -> Grid:
        """Give a grid that can be changed apart from this one."""
        other = copy(self)
        for name in _CELL_TABLES:
            setattr(other, name, getattr(self, name).copy())
        other.nodes, other.column, other.types = [*self.nodes], {**self.column}, [*self.types]
        other.by_rates, other._cells = {}, {}
        other.holds, other.vendors = dict(self.holds), self.vendors.copy()
        other.verified_only = dict(self.verified_only)
        other._ending = {slot: [*tasks] for slot, tasks in self._ending.items()}
        return other

    @property
    def horizon(self) -> Horizon:
        return Horizon(first_slot=self.first_slot, slots=self.slots)

    def cells_of(self, slots: Ints, columns: Ints) -> tuple[Cell, ...]:
        """Give the cells at slots and columns; the same again is the same object."""
        known = self._cells
        places: list[int] = (slots * len(self.nodes) + columns).tolist()
        try:
            return tuple(map(known.__getitem__, places))
        except KeyError:
            pass
        for place in places:
            if place not in known:
                slot, k = divmod(place, len(self.nodes))
                known[place] = Cell(slot, self.nodes[k].id)
        return tuple(map(known.__getitem__, places))

    def find_withheld(self) -> NDArray[np.bool_]:
        """Tell of which cells nothing is sold because their nodes ask more than is paid."""
        if not len(self.reserve_price):
            return np.zeros(self.compute_free.shape, np.bool_)
        return self.reserve_price == np.inf

    def find_room(self) -> Floats:
        """Give what is free of cells, in samples; minus infinity where nothing can be sold."""
        return np.where(self.find_withheld(), -np.inf, self.compute_free)

    def row(self, slot: int) -> int:
        """Give the row of a slot on sale."""
        return slot - self.first_slot

    # -- nodes ---------------------------------------------------------------

    def add_node(self, node: NodeSpec) -> None:
        """Append a node's cells, all free, at zero price."""
        self.nodes.append(node)
        self.column[node.id] = len(self.nodes) - 1
        self._refresh_columns()
        zeros = np.zeros((self.slots, 1))
        self.compute_price = np.hstack([self.compute_price, zeros])
        self.memory_price = np.hstack([self.memory_price, zeros])
        self.load = np.hstack([self.load, np.zeros((self.slots, 1), np.int64)])
        if len(self.reserve_price):
            self.reserve_price = np.hstack([self.reserve_price, np.full((self.slots, 1), np.inf)])
        self.compute_free = np.hstack([self.compute_free, zeros])
        self.memory_free = np.hstack([self.memory_free, zeros])
        self._restock(len(self.nodes) - 1)

    def remove_node(self, node_id: str) -> None:
        """Take a node's column out; its reservations must be gone already."""
        k = self.column.pop(node_id)
        del self.nodes[k]
        self.column = {node.id: i for i, node in enumerate(self.nodes)}
        self._refresh_columns()
        for name in _CELL_TABLES:
            table = getattr(self, name)
            if len(table):
                setattr(self, name, np.ascontiguousarray(np.delete(table, k, axis=1)))

    def change_node(self, node: NodeSpec) -> None:
        """Put a node's new terms in place; prices of its cells stay."""
        k = self.column[node.id]
        self.nodes[k] = node
        self._refresh_columns()
        self._restock(k)

    def _refresh_columns(self) -> None:
        for node in self.nodes:
            if node.gpu_type not in self.types:
                self.types.append(node.gpu_type)
        place = {name: i for i, name in enumerate(self.types)}
        self.node_type = np.array([place[n.gpu_type] for n in self.nodes], np.int64)
        self.compute_capacity = np.array([n.compute_capacity for n in self.nodes], np.float64)
        self.memory_capacity = np.array(
            [n.memory_capacity - self.base_memory for n in self.nodes], np.float64
        )
        self.ask_per_sample = np.array(
            [n.ask / n.compute_capacity if n.compute_capacity > 0 else 0.0 for n in self.nodes],
            np.float64,
        )
        self.memory_slack = np.where(
            self.memory_capacity > 0, TOLERANCE * np.abs(self.memory_capacity), -np.inf
        )
        self.is_verified = np.array([n.is_verified for n in self.nodes], np.bool_)
        self.by_rates = {}
        self._cells = {}
        self._refresh_waste()

    def pack_by(self, usual_rates: Mapping[str, tuple[float, ...]]) -> None:
        """Break ties between nodes so that little is left which usual rates cannot fill."""
        self.usual_rates = dict(usual_rates)
        self._refresh_waste()

    def _refresh_waste(self) -> None:
        if not any(self.usual_rates.values()):
            self.waste, self.waste_unit = np.empty((0, 0)), np.empty(0)
            return
        most = np.zeros(len(self.types))
        np.maximum.at(most, self.node_type, self.compute_capacity)
        self.waste_unit = np.where(most > 0, most, 1.0) / WASTE_UNITS
        self.waste = np.zeros((len(self.types), WASTE_UNITS + 1))
        for g, name in enumerate(self.types):
            self.waste[g] = measure_unfilled(
                self.usual_rates.get(name, ()), unit=self.waste_unit[g]
            )

    def _restock(self, k: int) -> None:
        """Work out from the reservations what is free in one column."""
        node = self.nodes[k]
        self.compute_free[:, k] = self.compute_capacity[k]
        self.memory_free[:, k] = self.memory_capacity[k]
        self.load[:, k] = 0
        for _, hold in self._holds_on(node.id):
            self._subtract(hold)
        for row in range(self.slots):
            if not self._on_sale(node, self.first_slot + row):
                self.compute_free[row, k] = -np.inf
                self.memory_free[row, k] = -np.inf

    @contextmanager
    def withheld(self, node_ids: Iterable[str]) -> Generator[None]:
        """Take nodes off sale while a task is searched for; the search must end inside."""
        columns = [self.column[node_id] for node_id in node_ids if node_id in self.column]
        free = self.compute_free[:, columns]
        self.compute_free[:, columns] = -np.inf
        try:
            yield
        finally:
            self.compute_free[:, columns] = free

    def _on_sale(self, node: NodeSpec, slot: int) -> bool:
        after = node.available_from is None or slot >= node.available_from
        before = node.available_until is None or slot <= node.available_until
        return after and before

    # -- time ----------------------------------------------------------------

    def advance(self, slot: int) -> None:
        """Retire the slots before ``slot`` and open as many at the end."""
        step = slot - self.first_slot
        if step <= 0:
            return
        self.first_slot = slot
        kept = max(self.slots - step, 0)
        for array in (
            self.compute_price,
            self.memory_price,
            self.compute_free,
            self.memory_free,
            self.load,
        ):
            array[:kept] = array[self.slots - kept :]
        if len(self.reserve_price):
            self.reserve_price[:kept] = self.reserve_price[self.slots - kept :]
            self.reserve_price[kept:] = np.inf
        self.compute_price[kept:] = 0.0
        self.memory_price[kept:] = 0.0
        self.load[kept:] = 0
        self.compute_free[kept:] = self.compute_capacity
        self.memory_free[kept:] = self.memory_capacity
        for k, node in enumerate(self.nodes):
            if node.available_from is not None or node.available_until is not None:
                for row in range(kept, self.slots):
                    if not self._on_sale(node, slot + row):
                        self.compute_free[row, k] = -np.inf
                        self.memory_free[row, k] = -np.inf
        self._forget_ended(slot)
        self.vendors.advance(slot)
        for node in [n for n in self.nodes if _over(n, slot)]:
            if not (node.keeps_sold and self.held_after(node.id, slot)):
                self.remove_node(node.id)

    def _forget_ended(self, slot: int) -> None:
        """Drop what tasks held whose last cell is past, and cells named that are."""
        for end in [end for end in self._ending if end < slot]:
            for task_id in self._ending.pop(end):
                held = self.holds.get(task_id)
                if held is not None and held.cells[-1].slot < slot:
                    del self.holds[task_id]
        for task_id in [t for t, until in self.verified_only.items() if until < slot]:
            if task_id not in self.holds:
                del self.verified_only[task_id]
        if len(self._cells) > 2 * self.slots * len(self.nodes):
            self._cells = {}

    # -- reservations --------------------------------------------------------

    def restore_holdings(self, holds: Mapping[str, list[HeldCell]]) -> None:
        """Take over what tasks hold, in order of admission; free room is as it is."""
        self.holds, self._ending = {}, {}
        for task_id, held in holds.items():
            self._hold(task_id, TaskHolding.of(held))

    def _hold(self, task_id: str, held: TaskHolding) -> None:
        self.holds[task_id] = held
        self._ending.setdefault(held.cells[-1].slot, []).append(task_id)

    def reserve(
        self, task_id: str, holding: TaskHolding, *, rows: Ints, columns: Ints, rate: Floats
    ) -> None:
        """Take cells off sale for a task; rows and columns say where they are."""
        self.compute_free[rows, columns] -= rate
        self.memory_free[rows, columns] -= holding.memories[0]
        self.load[rows, columns] += 1
        held = self.holds.get(task_id)
        if held is not None:
            both = held.each() + holding.each()
            holding = TaskHolding.of(sorted(both, key=lambda h: h.cell))
        self._hold(task_id, holding)

    def release(self, task_id: str, cells: Iterable[Cell]) -> list[HeldCell]:
        """Put cells back on sale; cells the task does not hold are ignored."""
        wanted = {cell for cell in cells if cell.slot >= self.first_slot}
        holding = self.holds.get(task_id)
        held = [] if holding is None else holding.each()
        gone = [hold for hold in held if hold.cell in wanted]
        left = [hold for hold in held if hold.cell not in wanted]
        if left:
            self._hold(task_id, TaskHolding.of(left))
        else:
            self.holds.pop(task_id, None)
        for hold in gone:
            self._add(hold)
        return gone

    def reservations(self) -> Iterator[CellReservation]:
        """Give all cells held, in order of admission."""
        for task_id, held in self.holds.items():
            for cell, rate, memory in zip(held.cells, held.rates, held.memories, strict=True):
                if cell.slot >= self.first_slot:
                    yield CellReservation(task_id=task_id, cell=cell, rate=rate, memory=memory)

    def held(self, task_id: str, *, from_slot: int) -> tuple[Cell, ...]:
        """Give the cells a task holds from a slot on, none of them past."""
        begin = max(from_slot, self.first_slot)
        held = self.holds.get(task_id)
        return () if held is None else tuple(cell for cell in held.cells if cell.slot >= begin)

    def held_after(self, node_id: str, slot: int) -> list[tuple[str, HeldCell]]:
        """Give what is held on a node from a slot on."""
        return [(task, hold) for task, hold in self._holds_on(node_id) if hold.cell.slot >= slot]

    def overbooked(self, node_id: str) -> list[tuple[str, HeldCell]]:
        """Give the holds, youngest first, that a changed node cannot keep."""
        k = self.column[node_id]
        node = self.nodes[k]
        compute: dict[int, float] = {}
        memory: dict[int, float] = {}
        dropped: list[tuple[str, HeldCell]] = []
        for task, hold in self._holds_on(node_id):
            slot = hold.cell.slot
            samples = compute.get(slot, 0.0) + hold.rate
            gigabytes = memory.get(slot, 0.0) + hold.memory
            if (
                not (node.keeps_sold or self._on_sale(node, slot))
                or (task in self.verified_only and not node.is_verified)
                or samples > self.compute_capacity[k] * (1 + TOLERANCE)
                or gigabytes > self.memory_capacity[k] + TOLERANCE * abs(self.memory_capacity[k])
            ):
                dropped.append((task, hold))
            else:
                compute[slot], memory[slot] = samples, gigabytes
        return dropped

    def _holds_on(self, node_id: str) -> Iterator[tuple[str, HeldCell]]:
        for task_id, held in self.holds.items():
            for hold in held.each():
                if hold.cell.node == node_id and hold.cell.slot >= self.first_slot:
                    yield task_id, hold

    def _subtract(self, hold: HeldCell) -> None:
        k, row = self.column[hold.cell.node], self.row(hold.cell.slot)
        self.compute_free[row, k] -= hold.rate
        self.memory_free[row, k] -= hold.memory
        self.load[row, k] += 1

    def _add(self, hold: HeldCell) -> None:
        k, row = self.column[hold.cell.node], self.row(hold.cell.slot)
        self.load[row, k] -= 1
        if self.load[row, k] == 0 and self.compute_free[row, k] > -np.inf:
            # Exactly what an unsold cell has: rounding does not pile up.
            self.compute_free[row, k] = self.compute_capacity[k]
            self.memory_free[row, k] = self.memory_capacity[k]
        else:
            self.compute_free[row, k] += hold.rate
            self.memory_free[row, k] += hold.memory


def _over(node: NodeSpec, slot: int) -> bool:
    return node.available_until is not None and node.available_until < slot


def cut_sale(node: NodeSpec, last_slot: int) -> NodeSpec:
    """Give the node with its sale ended no later than a slot."""
    end = last_slot if node.available_until is None else min(last_slot, node.available_until)
    return replace(node, available_until=end)
