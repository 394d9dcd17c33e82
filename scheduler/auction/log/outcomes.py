"""What an event led to, as frozen values that go to JSON and back exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scheduler.auction.log.value_json import cells_from_json, cells_to_json
from scheduler.types import Cell, Decision, PriceParts, Refusal, Schedule


@dataclass(frozen=True, slots=True)
class DroppedCells:
    """Cells a job held and holds no longer."""

    task_id: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class GridChange:
    """The grid changed; the jobs named lost cells and need a new plan."""

    dropped: tuple[DroppedCells, ...] = ()


@dataclass(frozen=True, slots=True)
class ReleasedCells:
    """Cells that went back on sale; those not held any more are left out."""

    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Replan:
    """A job's new plan."""

    task_id: str
    #: ``None`` when no cell is free.
    schedule: Schedule | None
    #: Operational cost and prices of the new cells; the owner pays none of it.
    parts: PriceParts | None
    #: Cells given up for it.
    released: tuple[Cell, ...]
    #: The plan covers all the work that is left.
    complete: bool
    #: The plan ends after the deadline.
    late: bool
    #: As in ``Decision``.
    raised: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class MovedPlans:
    """Jobs have the cells that the event names; what each left, those given up last."""

    released: tuple[DroppedCells, ...]


Outcome = Decision | GridChange | ReleasedCells | Replan | MovedPlans


def _parts_to_json(parts: PriceParts | None) -> list[float] | None:
    if parts is None:
        return None
    amounts = [parts.vendor, parts.operational, parts.compute, parts.memory, parts.rounding]
    charges = [parts.fee, parts.card, parts.tax]
    # Left out where there are none.
    return amounts + charges if any(charges) else amounts


def _parts_from_json(data: list[Any] | None) -> PriceParts | None:
    return None if data is None else PriceParts(*(float(x) for x in data))


def _schedule_to_json(schedule: Schedule | None) -> dict[str, Any] | None:
    if schedule is None:
        return None
    # Left out without a vendor.
    ready = {} if schedule.ready_slot is None else {"ready_slot": schedule.ready_slot}
    return {"cells": cells_to_json(schedule.cells), "vendor": schedule.vendor, **ready}


def _schedule_from_json(data: Mapping[str, Any] | None) -> Schedule | None:
    if data is None:
        return None
    ready = data.get("ready_slot")
    return Schedule(
        cells=cells_from_json(data["cells"]),
        vendor=int(data["vendor"]),
        ready_slot=None if ready is None else int(ready),
    )


def _dropped_to_json(dropped: tuple[DroppedCells, ...]) -> list[Any]:
    return [[d.task_id, cells_to_json(d.cells)] for d in dropped]


def _dropped_from_json(data: list[Any]) -> tuple[DroppedCells, ...]:
    return tuple(
        DroppedCells(task_id=str(task_id), cells=cells_from_json(cells)) for task_id, cells in data
    )


def _raised_from_json(data: list[Any]) -> tuple[tuple[float, float], ...]:
    return tuple((float(compute), float(memory)) for compute, memory in data)


def _float_or_none(value: Any) -> float | None:
    return None if value is None else float(value)


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """Give an outcome as plain JSON values, its ``type`` named."""
    match outcome:
        case Decision():
            return {
                "type": "Decision",
                "task_id": outcome.task_id,
                "admitted": outcome.admitted,
                "payment": outcome.payment,
                "surplus": outcome.surplus,
                "schedule": _schedule_to_json(outcome.schedule),
                "parts": _parts_to_json(outcome.parts),
                "refusal": None if outcome.refusal is None else outcome.refusal.value,
                "winning_price": outcome.winning_price,
                "winning_deadline_slot": outcome.winning_deadline_slot,
                "winning_deadline_price": outcome.winning_deadline_price,
                "notes": dict(outcome.notes),
                "raised": [list(pair) for pair in outcome.raised],
            }
        case GridChange(dropped=dropped):
            return {"type": "Changed", "dropped": _dropped_to_json(dropped)}
        case MovedPlans(released=released):
            return {"type": "Moved", "released": _dropped_to_json(released)}
        case ReleasedCells(cells=cells):
            return {"type": "Released", "cells": cells_to_json(cells)}
        case Replan():
            return {
                "type": "Replan",
                "task_id": outcome.task_id,
                "schedule": _schedule_to_json(outcome.schedule),
                "parts": _parts_to_json(outcome.parts),
                "released": cells_to_json(outcome.released),
                "complete": outcome.complete,
                "late": outcome.late,
                "raised": [list(pair) for pair in outcome.raised],
            }


def outcome_from_json(data: Mapping[str, Any]) -> Outcome:
    """Read what ``outcome_to_json`` wrote.

    Raises
    ------
    ValueError
        If the type is not one of this module's.
    """
    match data.get("type"):
        case "Decision":
            slot = data["winning_deadline_slot"]
            return Decision(
                task_id=str(data["task_id"]),
                admitted=bool(data["admitted"]),
                payment=float(data["payment"]),
                surplus=_float_or_none(data["surplus"]),
                schedule=_schedule_from_json(data["schedule"]),
                parts=_parts_from_json(data["parts"]),
                refusal=None if data["refusal"] is None else Refusal(data["refusal"]),
                winning_price=_float_or_none(data["winning_price"]),
                winning_deadline_slot=None if slot is None else int(slot),
                winning_deadline_price=_float_or_none(data["winning_deadline_price"]),
                notes=dict(data["notes"]),
                raised=_raised_from_json(data["raised"]),
            )
        case "Changed":
            return GridChange(dropped=_dropped_from_json(data["dropped"]))
        case "Moved":
            return MovedPlans(released=_dropped_from_json(data["released"]))
        case "Released":
            return ReleasedCells(cells=cells_from_json(data["cells"]))
        case "Replan":
            return Replan(
                task_id=str(data["task_id"]),
                schedule=_schedule_from_json(data["schedule"]),
                parts=_parts_from_json(data["parts"]),
                released=cells_from_json(data["released"]),
                complete=bool(data["complete"]),
                late=bool(data["late"]),
                raised=_raised_from_json(data["raised"]),
            )
        case other:
            raise ValueError(f"unknown outcome type {other!r}: the log is from another version")
