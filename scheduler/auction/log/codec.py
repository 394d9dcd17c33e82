"""Values of the log as JSON, and back exactly: rules, nodes, tasks, events and their outcomes.

A value is written as an object of its members. What follows is the list of exceptions: members
that are left out where they have their default, and values that come often and are written short.
"""

from __future__ import annotations

import typing
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from cattrs import Converter
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from scheduler.auction.log.events import (
    BidArrived,
    BundleArrived,
    CellsReleased,
    Event,
    ExpressAnswered,
    ExpressPlanned,
    PlanMove,
    PricesSolved,
    SlotAdvanced,
    TaskReplanned,
    VendorChanged,
)
from scheduler.auction.log.outcomes import (
    DroppedCells,
    GridChange,
    MovedPlans,
    Outcome,
    ReleasedCells,
    Replan,
    ToldPrice,
)
from scheduler.auction.log.rules import ZoneRules
from scheduler.public_log.entries import LOG_VERSION
from scheduler.types import (
    Cell,
    Decision,
    LaborVendor,
    NodeRate,
    NodeSpec,
    PriceParts,
    Schedule,
    Task,
    VendorCapacity,
)

T = TypeVar("T")
_Seats = tuple[tuple[str, Cell], ...]

#: Members that are left out where they have their default; what is part of another comes first.
_LEFT_OUT: Mapping[type[Any], tuple[str, ...]] = {
    NodeSpec: ("keeps_sold", "is_verified", "is_own"),
    PlanMove: ("verified_only",),
    Schedule: ("ready_slot",),
    Task: ("owner", "verified_only"),
    ZoneRules: (
        *("slot_s", "epoch_s", "posts_rates", "fee_per_unit", "card_share", "tax_share"),
        "late_slots",
    ),
    BidArrived: ("bundle",),
    CellsReleased: (
        *("refunded", "rest", "paid", "begun", "begun_asks", "slot", "promised"),
        "paid_share",
    ),
    GridChange: ("sold_again",),
    ReleasedCells: ("price", "refund", "waits"),
    SlotAdvanced: ("part",),
    PricesSolved: ("usual_rates", "own_asks", "sample_worth"),
    TaskReplanned: ("preferred_node", "avoided_nodes", "tolerance"),
}

#: What outcomes are called.
_OUTCOMES: Mapping[str, type[Any]] = {
    "Decision": Decision,
    "Changed": GridChange,
    "Moved": MovedPlans,
    "Released": ReleasedCells,
    "Replan": Replan,
    "Told": ToldPrice,
}
_OUTCOME_NAMES = {kind: name for name, kind in _OUTCOMES.items()}
_EVENTS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in typing.get_args(Event)}


def _write_rows(prices: Mapping[str, tuple[float, ...]]) -> dict[str, Any]:
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


def _read_rows(data: Mapping[str, Any], _: Any) -> dict[str, tuple[float, ...]]:
    rows = [tuple(float(x) for x in row) for row in data["rows"]]
    # In the order of the rows: written again, they have the same numbers, which the hash covers.
    places = sorted((int(place), str(node)) for node, place in data["nodes"].items())
    return {node: rows[place] for place, node in places}


def _write_cell(cell: Cell) -> list[Any]:
    return [cell.slot, cell.node]


def _read_cell(data: Sequence[Any], _: Any) -> Cell:
    slot, node = data
    return Cell(slot=int(slot), node=str(node))


def _write_seats(seats: _Seats) -> list[list[Any]]:
    return [[task_id, *_write_cell(cell)] for task_id, cell in seats]


def _read_seats(data: Iterable[Sequence[Any]], _: Any) -> _Seats:
    return tuple((str(task_id), _read_cell(cell, Cell)) for task_id, *cell in data)


def _write_moved(moved: Mapping[str, _Seats]) -> dict[str, Any]:
    return {job_id: _write_seats(seats) for job_id, seats in moved.items()}


def _read_moved(data: Mapping[str, Any], kind: Any) -> dict[str, _Seats]:
    return {str(job_id): _read_seats(seats, kind) for job_id, seats in data.items()}


def _write_parts(parts: PriceParts) -> list[float]:
    amounts = [parts.vendor, parts.operational, parts.compute, parts.memory, parts.rounding]
    charges = [parts.fee, parts.card, parts.tax]
    # Left out where there are none.
    return [float(x) for x in (amounts + charges if any(charges) else amounts)]


def _write_offer(offer: LaborVendor) -> list[Any]:
    load = [offer.load] if offer.load else []
    return [offer.id, float(offer.price), offer.delay_slots, *load]


def _read_offer(data: Sequence[Any], _: Any) -> LaborVendor:
    vendor, price, delay, *load = data
    return LaborVendor(str(vendor), float(price), int(delay), int(load[0]) if load else 0)


def _write_dropped(dropped: DroppedCells) -> list[Any]:
    return [dropped.task_id, [_write_cell(cell) for cell in dropped.cells]]


def _read_dropped(data: Sequence[Any], _: Any) -> DroppedCells:
    task_id, cells = data
    return DroppedCells(str(task_id), tuple(_read_cell(cell, Cell) for cell in cells))


def _read_rate(data: Sequence[Any], _: Any) -> NodeRate:
    ask, floor, by_block = data
    return NodeRate(float(ask), float(floor), tuple(float(x) for x in by_block))


#: Values that are written in a way of their own, with how they are written and read.
_SHORT: Mapping[type[Any], tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    Cell: (_write_cell, _read_cell),
    DroppedCells: (_write_dropped, _read_dropped),
    LaborVendor: (_write_offer, _read_offer),
    NodeRate: (
        lambda rate: [float(rate.ask), float(rate.floor), [float(x) for x in rate.by_block]],
        _read_rate,
    ),
    PriceParts: (_write_parts, lambda data, _: PriceParts(*(float(x) for x in data))),
    VendorChanged: (
        lambda event: {"vendor": event.vendor.id, "capacity": event.vendor.capacity},
        lambda data, _: VendorChanged(VendorCapacity(str(data["vendor"]), int(data["capacity"]))),
    ),
}

_ROWS = override(unstruct_hook=_write_rows, struct_hook=_read_rows)
_SEATS = override(unstruct_hook=_write_seats, struct_hook=_read_seats)
_MOVED = override(unstruct_hook=_write_moved, struct_hook=_read_moved)
_MOVED_IF_ANY = override(unstruct_hook=_write_moved, struct_hook=_read_moved, omit_if_default=True)
#: Members that are written in a way of their own.
_MEMBERS: Mapping[type[Any], Mapping[str, Any]] = {
    BundleArrived: {
        # Each as in the entry that follows for it.
        "arrivals": override(unstruct_hook=lambda arrivals: [event_to_json(a) for a in arrivals])
    },
    ExpressAnswered: {"seats": _SEATS, "moved": _MOVED_IF_ANY},
    ExpressPlanned: {"moved": _MOVED},
    NodeSpec: {"is_verified": override(rename="verified", omit_if_default=True)},
    PricesSolved: {"compute_price": _ROWS, "memory_price": _ROWS},
}


def _make_converter() -> Converter:
    made = Converter(
        detailed_validation=False, unstruct_collection_overrides={tuple: list, Sequence: list}
    )
    # Numbers of NumPy are floats too.
    made.register_unstructure_hook(float, float)
    for kind, (write, read) in _SHORT.items():
        made.register_unstructure_hook(kind, write)
        made.register_structure_hook(kind, read)
    # What a solver or a lane was given is written as it is.
    made.register_unstructure_hook_func(lambda kind: kind == Mapping[str, Any], dict)
    made.register_structure_hook_func(lambda kind: kind == Mapping[str, Any], _copy)
    for kind in {**_LEFT_OUT, **_MEMBERS}:
        left_out = {name: override(omit_if_default=True) for name in _LEFT_OUT.get(kind, ())}
        # Of any type: else they could be options of the functions below, which are bools.
        ways: dict[str, Any] = left_out | dict(_MEMBERS.get(kind, {}))
        made.register_unstructure_hook(kind, make_dict_unstructure_fn(kind, made, **ways))
        made.register_structure_hook(kind, make_dict_structure_fn(kind, made, **ways))
    _name_version(made)
    return made


def _name_version(made: Converter) -> None:
    """Let rules say the version of the log, and be read of this version alone."""
    write, read = made.get_unstructure_hook(ZoneRules), made.get_structure_hook(ZoneRules)

    def read_rules(data: Mapping[str, Any], kind: type[ZoneRules]) -> ZoneRules:
        version = data.get("version")
        if version != LOG_VERSION:
            raise ValueError(f"log version {version!r}: this program reads {LOG_VERSION}")
        return read(data, kind)

    made.register_unstructure_hook(ZoneRules, lambda rules: write(rules) | {"version": LOG_VERSION})
    made.register_structure_hook(ZoneRules, read_rules)


def _copy(data: Mapping[str, Any], _: Any) -> dict[str, Any]:
    return dict(data)


_CONVERTER = _make_converter()


def value_to_json(value: Any) -> Any:
    """Give a task, a node or another value of the log as plain JSON values."""
    return _CONVERTER.unstructure(value)


def value_from_json(kind: type[T], data: Any) -> T:
    """Read what ``value_to_json`` wrote; numbers get their declared type.

    Raises
    ------
    KeyError, TypeError, ValueError, AttributeError
        If a member is missing, or is not what it should be.
    """
    return _CONVERTER.structure(data, kind)


def rules_to_json(rules: ZoneRules) -> dict[str, Any]:
    """Give the rules as plain JSON values."""
    return value_to_json(rules)


def rules_from_json(data: Mapping[str, Any]) -> ZoneRules:
    """Read what ``rules_to_json`` wrote.

    Raises
    ------
    ValueError
        If the log is of another version, or a value is not one that rules may have.
    """
    return value_from_json(ZoneRules, data)


def event_to_json(event: Event) -> dict[str, Any]:
    """Give an event as plain JSON values, its ``type`` named."""
    return {"type": type(event).__name__} | value_to_json(event)


def event_from_json(data: Mapping[str, Any]) -> Event:
    """Read what ``event_to_json`` wrote.

    Raises
    ------
    ValueError
        If the type is not one of ``events``.
    """
    return value_from_json(_find_kind("event", data, _EVENTS), data)


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """Give an outcome as plain JSON values, its ``type`` named."""
    return {"type": _OUTCOME_NAMES[type(outcome)]} | value_to_json(outcome)


def outcome_from_json(data: Mapping[str, Any]) -> Outcome:
    """Read what ``outcome_to_json`` wrote.

    Raises
    ------
    ValueError
        If the type is not one of ``outcomes``.
    """
    return value_from_json(_find_kind("outcome", data, _OUTCOMES), data)


def _find_kind(what: str, data: Mapping[str, Any], kinds: Mapping[str, type[Any]]) -> type[Any]:
    name = data.get("type")
    kind = kinds.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"unknown {what} type {name!r}: the log is from another version")
    return kind
