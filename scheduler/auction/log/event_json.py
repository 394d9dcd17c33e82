"""Events of the log as JSON, and back; what an event does not have is left out."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from scheduler.auction.log.events import (
    BidArrived,
    BidsReceived,
    BundleArrived,
    CellsReleased,
    DayOpened,
    DayPromised,
    ErratumNoted,
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
from scheduler.auction.log.value_json import (
    cells_from_json,
    cells_to_json,
    node_from_json,
    node_to_json,
    rate_from_json,
    rate_to_json,
    task_from_json,
    task_to_json,
)
from scheduler.types import Cell, VendorCapacity


def event_to_json(event: Event) -> dict[str, Any]:
    """Give an event as plain JSON values, its ``type`` named."""
    kind = type(event)
    return {"type": kind.__name__} | _WRITERS[kind](event)


def event_from_json(data: Mapping[str, Any]) -> Event:
    """Read what ``event_to_json`` wrote.

    Raises
    ------
    ValueError
        If the type is not one of this module's.
    """
    kind = data.get("type")
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise ValueError(f"unknown event type {kind!r}: the log is from another version")
    return read(data)


def _move_to_json(move: PlanMove) -> dict[str, Any]:
    return {
        "task_id": move.task_id,
        "deadline_slot": move.deadline_slot,
        "compute_demand": float(move.compute_demand),
        "memory_demand": float(move.memory_demand),
        "rates": {name: float(rate) for name, rate in move.rates.items()},
        "cells": cells_to_json(move.cells),
        # Left out where it is not so.
        **({"verified_only": True} if move.verified_only else {}),
    }


def _move_from_json(data: Mapping[str, Any]) -> PlanMove:
    return PlanMove(
        task_id=str(data["task_id"]),
        deadline_slot=int(data["deadline_slot"]),
        compute_demand=float(data["compute_demand"]),
        memory_demand=float(data["memory_demand"]),
        rates={str(name): float(rate) for name, rate in data["rates"].items()},
        cells=cells_from_json(data["cells"]),
        verified_only=bool(data.get("verified_only", False)),
    )


def _prices_to_json(prices: Mapping[str, tuple[float, ...]]) -> dict[str, Any]:
    """Give each row once and the nodes that have it: those of one pool have the same."""
    rows: dict[bytes, int] = {}
    listed: list[list[float]] = []
    nodes: dict[str, int] = {}
    for node, row in prices.items():
        # JSON has one zero: adding it makes one of -0.0.
        numbers = [float(x) + 0.0 for x in row]
        key = array("d", numbers).tobytes()
        if key not in rows:
            rows[key] = len(listed)
            listed.append(numbers)
        nodes[node] = rows[key]
    return {"rows": listed, "nodes": nodes}


def _prices_from_json(data: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    rows = [tuple(float(x) for x in row) for row in data["rows"]]
    # In the order of the rows: written again, they have the same numbers, which the hash covers.
    places = sorted((int(place), str(node)) for node, place in data["nodes"].items())
    return {node: rows[place] for place, node in places}


def _wishes_to_json(event: TaskReplanned) -> dict[str, Any]:
    """Give what a re-plan is to look for; nothing where it is silent."""
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


def _write_arrival(event: BidArrived) -> dict[str, Any]:
    return {
        "task": task_to_json(event.task),
        "slot": event.slot,
        "salt": event.salt,
        # Left out for bids that are decided by themselves.
        **({"bundle": event.bundle} if event.bundle else {}),
    }


def _read_arrival(data: Mapping[str, Any]) -> BidArrived:
    return BidArrived(
        task=task_from_json(data["task"]),
        slot=int(data["slot"]),
        salt=str(data["salt"]),
        bundle=str(data.get("bundle", "")),
    )


def _write_bundle(event: BundleArrived) -> dict[str, Any]:
    return {
        "bundle_id": event.bundle_id,
        "arrivals": [event_to_json(arrival) for arrival in event.arrivals],
        "salt": event.salt,
    }


def _read_bundle(data: Mapping[str, Any]) -> BundleArrived:
    return BundleArrived(
        bundle_id=str(data["bundle_id"]),
        arrivals=tuple(_read_arrival(arrival) for arrival in data["arrivals"]),
        salt=str(data["salt"]),
    )


def _write_answer(event: ExpressAnswered) -> dict[str, Any]:
    return {
        "job_id": event.job_id,
        "question": dict(event.question),
        "answer": dict(event.answer),
        "seats": _seats_to_json(event.seats),
    } | ({"moved": _moved_to_json(event.moved)} if event.moved else {})


def _read_answer(data: Mapping[str, Any]) -> ExpressAnswered:
    return ExpressAnswered(
        job_id=str(data["job_id"]),
        question=dict(data["question"]),
        answer=dict(data["answer"]),
        seats=_seats_from_json(data["seats"]),
        moved=_moved_from_json(data.get("moved", {})),
    )


def _write_seat_plan(event: ExpressPlanned) -> dict[str, Any]:
    return {
        "question": dict(event.question),
        "answer": dict(event.answer),
        "moved": _moved_to_json(event.moved),
    }


def _read_seat_plan(data: Mapping[str, Any]) -> ExpressPlanned:
    return ExpressPlanned(
        question=dict(data["question"]),
        answer=dict(data["answer"]),
        moved=_moved_from_json(data["moved"]),
    )


def _write_replan(event: TaskReplanned) -> dict[str, Any]:
    return {
        "task": task_to_json(event.task),
        "slot": event.slot,
        "salt": event.salt,
        **_wishes_to_json(event),
    }


def _read_replan(data: Mapping[str, Any]) -> TaskReplanned:
    return TaskReplanned(
        task=task_from_json(data["task"]),
        slot=int(data["slot"]),
        salt=str(data["salt"]),
        **_wishes_from_json(data),
    )


def _write_moves(event: PlansMoved) -> dict[str, Any]:
    return {
        "moves": [_move_to_json(move) for move in event.moves],
        "slot": event.slot,
        "given_up": list(event.given_up),
    }


def _read_moves(data: Mapping[str, Any]) -> PlansMoved:
    return PlansMoved(
        moves=tuple(_move_from_json(move) for move in data["moves"]),
        slot=int(data["slot"]),
        given_up=tuple(str(task_id) for task_id in data["given_up"]),
    )


def _write_prices(event: PricesSolved) -> dict[str, Any]:
    rates = {name: list(row) for name, row in event.usual_rates.items()}
    worth = {name: list(row) for name, row in event.sample_worth.items()}
    return {
        "first_slot": event.first_slot,
        "compute_price": _prices_to_json(event.compute_price),
        "memory_price": _prices_to_json(event.memory_price),
        "seed": event.seed,
        "inputs": dict(event.inputs),
        "private": dict(event.private),
        "salt": event.salt,
        # Left out when there are none.
        **({"usual_rates": rates} if rates else {}),
        **({"own_asks": True} if event.own_asks else {}),
        **({"sample_worth": worth} if worth else {}),
    }


def _read_prices(data: Mapping[str, Any]) -> PricesSolved:
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


def _write_rates(event: RatesPosted) -> dict[str, Any]:
    return {
        "first_slot": event.first_slot,
        "block_slots": event.block_slots,
        "day_slots": event.day_slots,
        "rates": {node: rate_to_json(rate) for node, rate in event.rates.items()},
        "inputs": dict(event.inputs),
    }


def _read_rates(data: Mapping[str, Any]) -> RatesPosted:
    return RatesPosted(
        first_slot=int(data["first_slot"]),
        block_slots=int(data["block_slots"]),
        day_slots=int(data["day_slots"]),
        rates={str(node): rate_from_json(row) for node, row in data["rates"].items()},
        inputs=dict(data["inputs"]),
    )


#: By type, what an event has besides its type's name.
_WRITERS: Mapping[type[Any], Callable[[Any], dict[str, Any]]] = {
    BidsReceived: lambda event: {"bids": [list(bid) for bid in event.bids]},
    ReceiptsVoided: lambda event: {"task_ids": list(event.task_ids), "reason": event.reason},
    BidArrived: _write_arrival,
    BundleArrived: _write_bundle,
    ExpressAnswered: _write_answer,
    ExpressPlanned: _write_seat_plan,
    SlotAdvanced: lambda event: {
        "slot": event.slot,
        # Left out where the slot begins.
        **({"part": event.part} if event.part else {}),
    },
    NodeJoined: lambda event: {"node": node_to_json(event.node)},
    NodeChanged: lambda event: {"node": node_to_json(event.node)},
    NodeLeft: lambda event: {"node_id": event.node_id, "from_slot": event.from_slot},
    VendorChanged: lambda event: {"vendor": event.vendor.id, "capacity": event.vendor.capacity},
    PreparationEnded: lambda event: {"task_id": event.task_id, "slot": event.slot},
    CellsReleased: lambda event: {
        "task_id": event.task_id,
        "cells": cells_to_json(event.cells),
        # Left out where it is not so.
        **({"refunded": True} if event.refunded else {}),
    },
    TaskReplanned: _write_replan,
    PlansMoved: _write_moves,
    PricesSolved: _write_prices,
    RatesPosted: _write_rates,
    RulesChanged: lambda event: {"rules": rules_to_json(event.rules)},
    ErratumNoted: lambda event: {
        "entry": event.entry,
        "problem": event.problem,
        "rule": event.rule,
        "off_by": {kind: float(amount) for kind, amount in event.off_by.items()},
    },
    DayPromised: asdict,
    DayOpened: asdict,
}
_READERS: Mapping[str, Callable[[Mapping[str, Any]], Event]] = {
    "BidsReceived": lambda data: BidsReceived(
        bids=tuple((str(bid), str(seal)) for bid, seal in data["bids"])
    ),
    "ReceiptsVoided": lambda data: ReceiptsVoided(
        task_ids=tuple(map(str, data["task_ids"])), reason=str(data["reason"])
    ),
    "BidArrived": _read_arrival,
    "BundleArrived": _read_bundle,
    "ExpressAnswered": _read_answer,
    "ExpressPlanned": _read_seat_plan,
    "SlotAdvanced": lambda data: SlotAdvanced(int(data["slot"]), int(data.get("part", 0))),
    "NodeJoined": lambda data: NodeJoined(node=node_from_json(data["node"])),
    "NodeChanged": lambda data: NodeChanged(node=node_from_json(data["node"])),
    "NodeLeft": lambda data: NodeLeft(
        node_id=str(data["node_id"]), from_slot=int(data["from_slot"])
    ),
    "VendorChanged": lambda data: VendorChanged(
        VendorCapacity(str(data["vendor"]), int(data["capacity"]))
    ),
    "PreparationEnded": lambda data: PreparationEnded(
        task_id=str(data["task_id"]), slot=int(data["slot"])
    ),
    "CellsReleased": lambda data: CellsReleased(
        task_id=str(data["task_id"]),
        cells=cells_from_json(data["cells"]),
        refunded=bool(data.get("refunded", False)),
    ),
    "TaskReplanned": _read_replan,
    "PlansMoved": _read_moves,
    "PricesSolved": _read_prices,
    "RatesPosted": _read_rates,
    "RulesChanged": lambda data: RulesChanged(rules=rules_from_json(data["rules"])),
    "ErratumNoted": lambda data: ErratumNoted(
        entry=int(data["entry"]),
        problem=str(data["problem"]),
        rule=str(data["rule"]),
        off_by={str(kind): float(amount) for kind, amount in data["off_by"].items()},
    ),
    "DayPromised": lambda data: DayPromised(
        int(data["day"]), str(data["zone"]), str(data["commitment"])
    ),
    "DayOpened": lambda data: DayOpened(
        day=int(data["day"]),
        secret=str(data["secret"]),
        witness_key=str(data["witness_key"]),
        witness_signature=str(data["witness_signature"]),
    ),
}
