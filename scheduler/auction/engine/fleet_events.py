"""Nodes come, change and go: what jobs hold of them stays or is dropped."""

from __future__ import annotations

from scheduler.auction.engine.zone_state import ZoneState
from scheduler.auction.log.outcomes import DroppedCells, GridChange
from scheduler.auction.search.grid import cut_sale
from scheduler.auction.search.holdings import HeldCell
from scheduler.types import Cell, NodeSpec


def add_node(zone: ZoneState, node: NodeSpec) -> GridChange:
    """Put a node on sale; one of that name starts again without history."""
    grid = zone.grid
    _take_ask(zone, node)
    dropped: tuple[DroppedCells, ...] = ()
    if node.id in grid.column:
        dropped = _drop_cells(zone, grid.held_after(node.id, grid.first_slot))
        grid.remove_node(node.id)
        zone.returned.withdraw(node.id)
    zone.add_node(node)
    return GridChange(dropped=dropped)


def change_node(zone: ZoneState, node: NodeSpec) -> GridChange:
    """Put a node's new terms in place; what it cannot keep is dropped."""
    grid = zone.grid
    _take_ask(zone, node)
    if node.id not in grid.column:
        zone.add_node(node)
        return GridChange()
    _note_withdrawn(zone, grid.nodes[grid.column[node.id]], node)
    # The new terms say what is overbooked; once more, since dropped cells are free again.
    grid.change_node(node)
    dropped = _drop_cells(zone, grid.overbooked(node.id))
    grid.change_node(node)
    return GridChange(dropped=dropped)


def remove_node(zone: ZoneState, node_id: str, from_slot: int) -> GridChange:
    """End a node's sale; what it holds from then on is dropped."""
    grid = zone.grid
    if node_id not in grid.column:
        return GridChange()
    zone.returned.withdraw(node_id, from_slot=from_slot)
    dropped = _drop_cells(zone, grid.held_after(node_id, from_slot))
    if from_slot <= grid.first_slot:
        grid.remove_node(node_id)
    else:
        grid.change_node(cut_sale(grid.nodes[grid.column[node_id]], from_slot - 1))
    return GridChange(dropped=dropped)


def find_most_ask(zone: ZoneState, node: NodeSpec) -> float:
    """Give the most that a node may ask as it joins or changes now; infinite if anything."""
    return zone.house_asks.find_most(node, before=_find_node(zone, node.id))


def _take_ask(zone: ZoneState, node: NodeSpec) -> None:
    before = _find_node(zone, node.id)
    zone.house_asks = zone.house_asks.take(node, before=before, day=zone.today)


def _find_node(zone: ZoneState, node_id: str) -> NodeSpec | None:
    k = zone.grid.column.get(node_id)
    return None if k is None else zone.grid.nodes[k]


def _note_withdrawn(zone: ZoneState, before: NodeSpec, node: NodeSpec) -> None:
    """Note which cells that owners gave back are dearer now, or for sale to fewer."""
    # Where rates are posted, a node that asks more sells at them, or nothing.
    is_dearer = node.ask > before.ask and not zone.rules.posts_rates
    is_less = node.memory_capacity < before.memory_capacity or node.is_verified < before.is_verified
    if is_dearer or is_less:
        zone.returned.withdraw(node.id)
    zone.returned.slow_down(node.id, node.compute_capacity)
    if node.available_from is not None:
        zone.returned.withdraw(node.id, until_slot=node.available_from - 1)
    if node.available_until is not None:
        zone.returned.withdraw(node.id, from_slot=node.available_until + 1)


def _drop_cells(zone: ZoneState, lost: list[tuple[str, HeldCell]]) -> tuple[DroppedCells, ...]:
    by_task: dict[str, list[Cell]] = {}
    for task_id, hold in lost:
        by_task.setdefault(task_id, []).append(hold.cell)
    return tuple(
        DroppedCells(task_id=task_id, cells=zone.release(task_id, cells))
        for task_id, cells in by_task.items()
    )
