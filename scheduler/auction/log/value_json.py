"""Values of the log's events as JSON, and back; what a value does not have is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.types import Cell, LaborVendor, NodeRate, NodeSpec, Task


def task_to_json(task: Task) -> dict[str, Any]:
    """Give a task as plain JSON values."""
    costs = task.operational_costs
    return {
        "id": task.id,
        "arrival_slot": task.arrival_slot,
        "deadline_slot": task.deadline_slot,
        "compute_demand": float(task.compute_demand),
        "memory_demand": float(task.memory_demand),
        "bid": float(task.bid),
        "rates": {name: float(rate) for name, rate in task.rates.items()},
        "vendors": [offer_to_json(offer) for offer in task.vendors],
        "operational_costs": None
        if costs is None
        else {node: [float(x) for x in row] for node, row in costs.items()},
        # Left out where there is none.
        **({"owner": task.owner} if task.owner else {}),
        **({"verified_only": True} if task.verified_only else {}),
    }


def task_from_json(data: Mapping[str, Any]) -> Task:
    """Read what ``task_to_json`` wrote."""
    costs = data["operational_costs"]
    return Task(
        id=str(data["id"]),
        arrival_slot=int(data["arrival_slot"]),
        deadline_slot=int(data["deadline_slot"]),
        compute_demand=float(data["compute_demand"]),
        memory_demand=float(data["memory_demand"]),
        bid=float(data["bid"]),
        rates={str(name): float(rate) for name, rate in data["rates"].items()},
        vendors=tuple(offer_from_json(offer) for offer in data["vendors"]),
        operational_costs=None
        if costs is None
        else {str(node): tuple(float(x) for x in row) for node, row in costs.items()},
        owner=str(data.get("owner", "")),
        verified_only=bool(data.get("verified_only", False)),
    )


def offer_to_json(offer: LaborVendor) -> list[Any]:
    """Give a vendor's offer as plain JSON values; the load is left out where it is none."""
    load = [offer.load] if offer.load else []
    return [offer.id, float(offer.price), offer.delay_slots, *load]


def offer_from_json(data: list[Any]) -> LaborVendor:
    """Read what ``offer_to_json`` wrote."""
    vendor, price, delay, *load = data
    return LaborVendor(str(vendor), float(price), int(delay), int(load[0]) if load else 0)


def node_to_json(node: NodeSpec) -> dict[str, Any]:
    """Give a node as plain JSON values; its marks only where they are set."""
    kept = {"keeps_sold": True} if node.keeps_sold else {}
    vouched = {"verified": True} if node.is_verified else {}
    return {
        "id": node.id,
        "gpu_type": node.gpu_type,
        "compute_capacity": float(node.compute_capacity),
        "memory_capacity": float(node.memory_capacity),
        "ask": float(node.ask),
        "available_from": node.available_from,
        "available_until": node.available_until,
        **kept,
        **vouched,
    }


def node_from_json(data: Mapping[str, Any]) -> NodeSpec:
    """Read what ``node_to_json`` wrote."""
    begin, end = data["available_from"], data["available_until"]
    return NodeSpec(
        id=str(data["id"]),
        gpu_type=str(data["gpu_type"]),
        compute_capacity=float(data["compute_capacity"]),
        memory_capacity=float(data["memory_capacity"]),
        ask=float(data["ask"]),
        available_from=None if begin is None else int(begin),
        available_until=None if end is None else int(end),
        keeps_sold=bool(data.get("keeps_sold", False)),
        is_verified=bool(data.get("verified", False)),
    )


def cells_to_json(cells: tuple[Cell, ...]) -> list[list[Any]]:
    """Give cells as ``[slot, node]`` pairs."""
    return [[cell.slot, cell.node] for cell in cells]


def cells_from_json(data: list[list[Any]]) -> tuple[Cell, ...]:
    """Read what ``cells_to_json`` wrote."""
    return tuple(Cell(slot=int(slot), node=str(node)) for slot, node in data)


def rate_to_json(rate: NodeRate) -> list[Any]:
    """Give a rate as plain JSON values: ask, floor and the row by block."""
    return [float(rate.ask), float(rate.floor), [float(x) for x in rate.by_block]]


def rate_from_json(data: list[Any]) -> NodeRate:
    """Read what ``rate_to_json`` wrote."""
    ask, floor, by_block = data
    return NodeRate(float(ask), float(floor), tuple(float(x) for x in by_block))
