"""The engine's whole state as JSON values, exact to the last bit.

Arrays are base64 of little-endian 8-byte numbers: text of floats would be as
exact but larger, and minus infinity has no JSON.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from scheduler.auction.engine.house_asks import HouseAsks
from scheduler.auction.engine.receipts import OpenBundle
from scheduler.auction.engine.returned_cells import (
    Claim,
    Purchase,
    ReturnedCell,
    ReturnedCells,
)
from scheduler.auction.engine.zone_state import ZoneState
from scheduler.auction.log.codec import (
    event_from_json,
    event_to_json,
    rules_from_json,
    rules_to_json,
    value_from_json,
    value_to_json,
)
from scheduler.auction.log.events import RatesPosted
from scheduler.auction.log.rules import ZoneRules
from scheduler.auction.search.grid import Grid
from scheduler.auction.search.holdings import HeldCell
from scheduler.auction.search.vendor_book import VendorBook, VendorHold
from scheduler.public_log.days import day_from_json, day_to_json
from scheduler.types import Beat, Cell, Horizon, NodeSpec, Refusal

_FORMAT = 2
_ARRAYS = ("compute_price", "memory_price", "compute_free", "memory_free")


def serialize_state(state: ZoneState) -> dict[str, Any]:
    """Give a zone's state as JSON values."""
    grid = state.grid
    return {
        "format": _FORMAT,
        "rules": rules_to_json(state.rules),
        "memory": dict(state.policy_state),
        **(
            {"receipts": [[bid, seal] for bid, seal in state.receipts.items()]}
            if state.receipts
            else {}
        ),
        "day": day_to_json(state.day),
        "waiting": [[day, rules_to_json(rules)] for day, rules in state.waiting],
        "beat": None if state.beat is None else [state.beat.slot, state.beat.part],
        "asks_may_rise": state.house_asks.may_rise,
        "house_asks": [[day, value_to_json(node)] for day, node in state.house_asks.known.values()],
        **({} if state.bundle is None else {"bundle": _bundle_to_json(state.bundle)}),
        "first_slot": grid.first_slot,
        "nodes": [value_to_json(node) for node in grid.nodes],
        "types": list(grid.types),
        "usual_rates": {name: list(rates) for name, rates in grid.usual_rates.items()},
        **({"own_asks": True} if grid.own_asks else {}),
        "arrays": {
            **{name: _pack(getattr(grid, name), "<f8") for name in _ARRAYS},
            "load": _pack(grid.load, "<i8"),
            **({"reserve": _pack(grid.reserve_price, "<f8")} if len(grid.reserve_price) else {}),
        },
        **({} if state.posted is None else {"posted": event_to_json(state.posted)}),
        **({"returned": _returned_to_json(state.returned)} if state.returned.cells else {}),
        **_vendors_to_json(grid.vendors),
        **({"verified_only": dict(grid.verified_only)} if grid.verified_only else {}),
        "holds": [
            [
                task_id,
                [
                    [h.cell.slot, h.cell.node, h.rate, h.memory, h.compute_rise, h.memory_rise]
                    for h in held.each()
                ],
            ]
            for task_id, held in grid.holds.items()
        ],
    }


def parse_rules(data: Mapping[str, Any]) -> ZoneRules:
    """Read the rules of what ``serialize_state`` wrote.

    Raises
    ------
    ValueError
        If the snapshot is of another format.
    """
    if data.get("format") != _FORMAT:
        raise ValueError(
            f"snapshot format {data.get('format')!r} is not {_FORMAT}: "
            "replay the log from its beginning with this version"
        )
    return rules_from_json(data["rules"])


def restore_state(state: ZoneState, data: Mapping[str, Any]) -> None:
    """Bring a zone that has just begun under a snapshot's rules to its state."""
    rules = state.rules
    grid = Grid(
        horizon=Horizon(first_slot=int(data["first_slot"]), slots=rules.horizon_slots),
        base_memory=rules.base_memory,
    )
    grid.types = [str(name) for name in data["types"]]
    for node in data["nodes"]:
        grid.add_node(value_from_json(NodeSpec, node))
    grid.pack_by(
        {str(name): tuple(map(float, rates)) for name, rates in data.get("usual_rates", {}).items()}
    )
    grid.own_asks = bool(data.get("own_asks", False))
    shape = (rules.horizon_slots, len(grid.nodes))
    for name in _ARRAYS:
        setattr(grid, name, _unpack(data["arrays"][name], "<f8", shape))
    grid.load = _unpack(data["arrays"]["load"], "<i8", shape)
    if "reserve" in data["arrays"]:
        grid.reserve_price = _unpack(data["arrays"]["reserve"], "<f8", shape)
    grid.restore_holdings(
        {
            str(task_id): [
                HeldCell(
                    cell=Cell(slot=int(slot), node=str(node)),
                    rate=float(rate),
                    memory=float(memory),
                    compute_rise=float(compute_rise),
                    memory_rise=float(memory_rise),
                )
                for slot, node, rate, memory, compute_rise, memory_rise in holds
            ]
            for task_id, holds in data["holds"]
        }
    )
    grid.vendors = _parse_vendors(data.get("vendors", {}))
    grid.verified_only = {
        str(task): int(slot) for task, slot in data.get("verified_only", {}).items()
    }
    state.grid = grid
    state.policy_state = {str(name): float(value) for name, value in data["memory"].items()}
    state.receipts = {str(bid): str(seal) for bid, seal in data.get("receipts", ())}
    state.bundle = _parse_bundle(data["bundle"]) if "bundle" in data else None
    state.posted = _parse_posted(data)
    state.returned = _parse_returned(data.get("returned", ()))
    state.day = day_from_json(data["day"])
    state.waiting = tuple((int(day), rules_from_json(rules)) for day, rules in data["waiting"])
    state.beat = None if data["beat"] is None else Beat(*map(int, data["beat"]))
    asks = [(int(day), value_from_json(NodeSpec, node)) for day, node in data["house_asks"]]
    state.house_asks = HouseAsks(
        {node.id: (day, node) for day, node in asks}, may_rise=bool(data["asks_may_rise"])
    )


def _bundle_to_json(bundle: OpenBundle) -> list[Any]:
    refusal = None if bundle.refusal is None else bundle.refusal.value
    return [bundle.bundle_id, list(bundle.task_ids), bundle.deadline_slot, refusal]


def _parse_bundle(data: list[Any]) -> OpenBundle:
    bundle_id, task_ids, deadline_slot, refusal = data
    return OpenBundle(
        bundle_id=str(bundle_id),
        task_ids=tuple(str(task_id) for task_id in task_ids),
        deadline_slot=int(deadline_slot),
        refusal=None if refusal is None else Refusal(refusal),
    )


def _vendors_to_json(book: VendorBook) -> dict[str, Any]:
    """Give what vendors can do and have to do; nothing where there are none, as in older states."""
    holds = [[task_id, *hold] for task_id, hold in book.holds.items()]
    used = [
        [vendor, slot, units]
        for vendor, slots in sorted(book.used.items())
        for slot, units in sorted(slots.items())
        if units
    ]
    if not (book.capacity or holds or used):
        return {}
    return {
        "vendors": {"capacity": dict(sorted(book.capacity.items())), "holds": holds, "used": used}
    }


def _parse_vendors(data: Mapping[str, Any]) -> VendorBook:
    book = VendorBook()
    book.capacity = {str(vendor): int(units) for vendor, units in data.get("capacity", {}).items()}
    for task_id, vendor, begin, ready, load in data.get("holds", ()):
        hold = VendorHold(str(vendor), int(begin), int(ready), int(load))
        book.holds[str(task_id)] = hold
    for vendor, slot, units in data.get("used", ()):
        book.used.setdefault(str(vendor), {})[int(slot)] = int(units)
    return book


def _parse_posted(data: Mapping[str, Any]) -> RatesPosted | None:
    if "posted" not in data:
        return None
    posted = event_from_json(data["posted"])
    if not isinstance(posted, RatesPosted):
        raise ValueError(f"the snapshot's rates are a {type(posted).__name__}")
    return posted


def _returned_to_json(returned: ReturnedCells) -> list[Any]:
    return [
        [
            [cell.slot, cell.node],
            [[claim.task_id, claim.room, claim.rent, claim.slot] for claim in known.claims],
            list(known.before),
            [[task, *sale] for task, sale in known.bought.items()],
            known.is_withdrawn,
            [known.capacity, known.least_capacity],
        ]
        for cell, known in returned.cells.items()
    ]


def _parse_returned(data: Iterable[Any]) -> ReturnedCells:
    return ReturnedCells(
        {
            Cell(slot=int(slot), node=str(node)): ReturnedCell(
                tuple(
                    Claim(str(task), float(room), int(rent), int(given_at))
                    for task, room, rent, given_at in claims
                ),
                tuple(map(str, before)),
                {str(task): Purchase(float(rent), float(room)) for task, rent, room in bought},
                bool(is_withdrawn),
                *map(float, capacities),
            )
            for (slot, node), claims, before, bought, is_withdrawn, capacities in data
        }
    )


def _pack(array: Any, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype=kind).tobytes()).decode("ascii")


def _unpack(text: str, kind: str, shape: tuple[int, int]) -> Any:
    flat = np.frombuffer(base64.b64decode(text), dtype=kind)
    return flat.astype(kind.replace("<", "=")).reshape(shape).copy()
