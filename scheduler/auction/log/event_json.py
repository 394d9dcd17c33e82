"""Events of the log as JSON, and back; older logs lack what came later."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

from scheduler.auction.log.events import (
    BidArrived,
    BidsReceived,
    BundleArrived,
    CellsReleased,
    Event,
    ExpressAnswered,
    ExpressPlanned,
    NodeChanged,
    NodeJoined,
    NodeLeft,
    PlanMove,
    PlansMoved,
    PreparationEnded,
    PricesSolved,
    RatesPosted,
    ReceiptsVoided,
    RulesChanged,
    SlotAdvanced,
    TaskReplanned,
    VendorChanged,
)
from scheduler.auction.log.rules import rules_from_json, rules_to_json
from scheduler.types import Cell, LaborVendor, NodeRate, NodeSpec, Task, VendorCapacity


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
        # Left out where there is none, as in logs of earlier versions.
        **({"owner": task.owner} if task.owner else {}),
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
    """Give a node as plain JSON values; ``keeps_sold`` only where it is set, as in older logs."""
    kept = {"keeps_sold": True} if node.keeps_sold else {}
    return {
        "id": node.id,
        "gpu_type": node.gpu_type,
        "compute_capacity": float(node.compute_capacity),
        "memory_capacity": float(node.memory_capacity),
        "ask": float(node.ask),
        "available_from": node.available_from,
        "available_until": node.available_until,
        **kept,
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
    )


def cells_to_json(cells: tuple[Cell, ...]) -> list[list[Any]]:
    """Give cells as ``[slot, node]`` pairs."""
    return [[cell.slot, cell.node] for cell in cells]


def cells_from_json(data: list[list[Any]]) -> tuple[Cell, ...]:
    """Read what ``cells_to_json`` wrote."""
    return tuple(Cell(slot=int(slot), node=str(node)) for slot, node in data)


def _move_to_json(move: PlanMove) -> dict[str, Any]:
    return {
        "task_id": move.task_id,
        "deadline_slot": move.deadline_slot,
        "compute_demand": float(move.compute_demand),
        "memory_demand": float(move.memory_demand),
        "rates": {name: float(rate) for name, rate in move.rates.items()},
        "cells": cells_to_json(move.cells),
    }


def _move_from_json(data: Mapping[str, Any]) -> PlanMove:
    return PlanMove(
        task_id=str(data["task_id"]),
        deadline_slot=int(data["deadline_slot"]),
        compute_demand=float(data["compute_demand"]),
        memory_demand=float(data["memory_demand"]),
        rates={str(name): float(rate) for name, rate in data["rates"].items()},
        cells=cells_from_json(data["cells"]),
    )


def _prices_to_json(prices: Mapping[str, tuple[float, ...]]) -> dict[str, Any]:
    """Give each row once and the nodes that have it: those of one pool have the same."""
    rows: dict[bytes, int] = {}
    listed: list[list[float]] = []
    nodes: dict[str, int] = {}
    for node, row in prices.items():
        # By its bits: 0.0 and -0.0 are equal and not the same.
        key = array("d", row).tobytes()
        if key not in rows:
            rows[key] = len(listed)
            listed.append([float(x) for x in row])
        nodes[node] = rows[key]
    return {"rows": listed, "nodes": nodes}


def _prices_from_json(data: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    rows = [tuple(float(x) for x in row) for row in data["rows"]]
    return {str(node): rows[int(place)] for node, place in data["nodes"].items()}


def rate_to_json(rate: NodeRate) -> list[Any]:
    """Give a rate as plain JSON values: ask, floor and the row by block."""
    return [float(rate.ask), float(rate.floor), [float(x) for x in rate.by_block]]


def rate_from_json(data: list[Any]) -> NodeRate:
    """Read what ``rate_to_json`` wrote."""
    ask, floor, by_block = data
    return NodeRate(float(ask), float(floor), tuple(float(x) for x in by_block))


def _wishes_to_json(event: TaskReplanned) -> dict[str, Any]:
    """Give what a re-plan is to look for; nothing where it is silent, as in older logs."""
    wishes: dict[str, Any] = {}
    if event.preferred_node is not None:
        wishes["preferred_node"] = event.preferred_node
    if event.avoided_nodes:
        wishes["avoided_nodes"] = list(event.avoided_nodes)
    if event.tolerance is not None:
        wishes["tolerance"] = float(event.tolerance)
    return wishes


def _wishes_from_json(data: Mapping[str, Any]) -> dict[str, Any]:
    preferred, tolerance = data.get("preferred_node"), data.get("tolerance")
    return {
        "preferred_node": None if preferred is None else str(preferred),
        "avoided_nodes": tuple(str(node) for node in data.get("avoided_nodes", ())),
        "tolerance": None if tolerance is None else float(tolerance),
    }


def _version_to_json(version: int) -> dict[str, int]:
    """Give the version; it is left out where it is 1, as in older logs."""
    return {"version": version} if version > 1 else {}


def _seats_to_json(seats: Iterable[tuple[str, Cell]]) -> list[list[Any]]:
    return [[task_id, cell.slot, cell.node] for task_id, cell in seats]


def _seats_from_json(data: Iterable[Any]) -> tuple[tuple[str, Cell], ...]:
    return tuple(
        (str(task_id), Cell(slot=int(slot), node=str(node))) for task_id, slot, node in data
    )


def _moved_to_json(moved: Mapping[str, Iterable[tuple[str, Cell]]]) -> dict[str, Any]:
    return {job_id: _seats_to_json(seats) for job_id, seats in sorted(moved.items())}


def _moved_from_json(data: Mapping[str, Any]) -> dict[str, tuple[tuple[str, Cell], ...]]:
    return {str(job_id): _seats_from_json(seats) for job_id, seats in data.items()}


def event_to_json(event: Event) -> dict[str, Any]:
    """Give an event as plain JSON values, its ``type`` named."""
    match event:
        case BidsReceived(bids=bids):
            return {"type": "BidsReceived", "bids": [list(bid) for bid in bids]}
        case ExpressAnswered():
            return {
                "type": "ExpressAnswered",
                "job_id": event.job_id,
                "question": dict(event.question),
                "answer": dict(event.answer),
                "seats": _seats_to_json(event.seats),
            } | ({"moved": _moved_to_json(event.moved)} if event.moved else {})
        case ExpressPlanned():
            return {
                "type": "ExpressPlanned",
                "question": dict(event.question),
                "answer": dict(event.answer),
                "moved": _moved_to_json(event.moved),
            }
        case ReceiptsVoided(task_ids=task_ids, reason=reason):
            return {"type": "ReceiptsVoided", "task_ids": list(task_ids), "reason": reason}
        case BidArrived(task=task, slot=slot, salt=salt):
            return {
                "type": "BidArrived",
                "task": task_to_json(task),
                "slot": slot,
                "salt": salt,
                **_version_to_json(event.version),
                # Left out for bids that are decided by themselves, as in older logs.
                **({"bundle": event.bundle} if event.bundle else {}),
            }
        case BundleArrived():
            return {
                "type": "BundleArrived",
                "bundle_id": event.bundle_id,
                "arrivals": [event_to_json(arrival) for arrival in event.arrivals],
                "salt": event.salt,
                "version": event.version,
            }
        case SlotAdvanced(slot=slot):
            return {"type": "SlotAdvanced", "slot": slot}
        case NodeJoined(node=node):
            return {"type": "NodeJoined", "node": node_to_json(node)}
        case NodeChanged(node=node):
            return {"type": "NodeChanged", "node": node_to_json(node)}
        case NodeLeft(node_id=node_id, from_slot=from_slot):
            return {"type": "NodeLeft", "node_id": node_id, "from_slot": from_slot}
        case VendorChanged(vendor=vendor):
            return {"type": "VendorChanged", "vendor": vendor.id, "capacity": vendor.capacity}
        case PreparationEnded(task_id=task_id, slot=slot):
            return {"type": "PreparationEnded", "task_id": task_id, "slot": slot}
        case CellsReleased(task_id=task_id, cells=cells):
            return {"type": "CellsReleased", "task_id": task_id, "cells": cells_to_json(cells)}
        case TaskReplanned(task=task, slot=slot, salt=salt):
            return {
                "type": "TaskReplanned",
                "task": task_to_json(task),
                "slot": slot,
                "salt": salt,
                **_version_to_json(event.version),
                **_wishes_to_json(event),
            }
        case PlansMoved(moves=moves, slot=slot):
            return {
                "type": "PlansMoved",
                "moves": [_move_to_json(move) for move in moves],
                "slot": slot,
                "given_up": list(event.given_up),
            }
        case PricesSolved():
            rates = {name: list(row) for name, row in event.usual_rates.items()}
            worth = {name: list(row) for name, row in event.sample_worth.items()}
            return {
                "type": "PricesSolved",
                "first_slot": event.first_slot,
                "compute_price": _prices_to_json(event.compute_price),
                "memory_price": _prices_to_json(event.memory_price),
                "seed": event.seed,
                "inputs": dict(event.inputs),
                "private": dict(event.private),
                "salt": event.salt,
                # Left out when there are none, as in logs of earlier versions.
                **({"usual_rates": rates} if rates else {}),
                **({"own_asks": True} if event.own_asks else {}),
                **({"sample_worth": worth} if worth else {}),
            }
        case RatesPosted():
            return {
                "type": "RatesPosted",
                "first_slot": event.first_slot,
                "block_slots": event.block_slots,
                "day_slots": event.day_slots,
                "rates": {node: rate_to_json(rate) for node, rate in event.rates.items()},
                "inputs": dict(event.inputs),
            }
        case RulesChanged(rules=rules):
            return {"type": "RulesChanged", "rules": rules_to_json(rules)}


def _arrival_from_json(data: Mapping[str, Any]) -> BidArrived:
    return BidArrived(
        task=task_from_json(data["task"]),
        slot=int(data["slot"]),
        salt=str(data["salt"]),
        version=int(data.get("version", 1)),
        bundle=str(data.get("bundle", "")),
    )


def event_from_json(data: Mapping[str, Any]) -> Event:
    """Read what ``event_to_json`` wrote.

    Raises
    ------
    ValueError
        If the type is not one of this module's.
    """
    match data.get("type"):
        case "BidsReceived":
            return BidsReceived(bids=tuple((str(bid), str(seal)) for bid, seal in data["bids"]))
        case "ExpressAnswered":
            return ExpressAnswered(
                job_id=str(data["job_id"]),
                question=dict(data["question"]),
                answer=dict(data["answer"]),
                seats=_seats_from_json(data["seats"]),
                moved=_moved_from_json(data.get("moved", {})),
            )
        case "ExpressPlanned":
            return ExpressPlanned(
                question=dict(data["question"]),
                answer=dict(data["answer"]),
                moved=_moved_from_json(data["moved"]),
            )
        case "ReceiptsVoided":
            return ReceiptsVoided(
                task_ids=tuple(str(task_id) for task_id in data["task_ids"]),
                reason=str(data["reason"]),
            )
        case "BidArrived":
            return _arrival_from_json(data)
        case "BundleArrived":
            return BundleArrived(
                bundle_id=str(data["bundle_id"]),
                arrivals=tuple(_arrival_from_json(arrival) for arrival in data["arrivals"]),
                salt=str(data["salt"]),
                version=int(data["version"]),
            )
        case "SlotAdvanced":
            return SlotAdvanced(slot=int(data["slot"]))
        case "NodeJoined":
            return NodeJoined(node=node_from_json(data["node"]))
        case "NodeChanged":
            return NodeChanged(node=node_from_json(data["node"]))
        case "NodeLeft":
            return NodeLeft(node_id=str(data["node_id"]), from_slot=int(data["from_slot"]))
        case "VendorChanged":
            return VendorChanged(VendorCapacity(str(data["vendor"]), int(data["capacity"])))
        case "PreparationEnded":
            return PreparationEnded(task_id=str(data["task_id"]), slot=int(data["slot"]))
        case "CellsReleased":
            return CellsReleased(task_id=str(data["task_id"]), cells=cells_from_json(data["cells"]))
        case "TaskReplanned":
            return TaskReplanned(
                task=task_from_json(data["task"]),
                slot=int(data["slot"]),
                salt=str(data["salt"]),
                version=int(data.get("version", 1)),
                **_wishes_from_json(data),
            )
        case "PlansMoved":
            return PlansMoved(
                moves=tuple(_move_from_json(move) for move in data["moves"]),
                slot=int(data["slot"]),
                given_up=tuple(str(task_id) for task_id in data["given_up"]),
            )
        case "PricesSolved":
            return PricesSolved(
                first_slot=int(data["first_slot"]),
                compute_price=_prices_from_json(data["compute_price"]),
                memory_price=_prices_from_json(data["memory_price"]),
                seed=int(data["seed"]),
                inputs=dict(data["inputs"]),
                private=dict(data.get("private", {})),
                salt=str(data.get("salt", "")),
                own_asks=bool(data.get("own_asks", False)),
                usual_rates={
                    str(name): tuple(map(float, rates))
                    for name, rates in data.get("usual_rates", {}).items()
                },
                sample_worth={
                    str(name): tuple(map(float, worth))
                    for name, worth in data.get("sample_worth", {}).items()
                },
            )
        case "RatesPosted":
            return RatesPosted(
                first_slot=int(data["first_slot"]),
                block_slots=int(data["block_slots"]),
                day_slots=int(data["day_slots"]),
                rates={str(node): rate_from_json(row) for node, row in data["rates"].items()},
                inputs=dict(data["inputs"]),
            )
        case "RulesChanged":
            return RulesChanged(rules=rules_from_json(data["rules"]))
        case other:
            raise ValueError(f"unknown event type {other!r}: the log is from another version")
