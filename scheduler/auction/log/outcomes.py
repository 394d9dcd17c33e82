"""What an event led to, as frozen values; ``codec`` writes and reads them exactly."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.types import Cell, Decision, PriceParts, Refusal, Schedule


@dataclass(frozen=True, slots=True)
class DroppedCells:
    """Cells a job held and holds no longer."""

    task_id: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class SoldAgain:
    """What goes back for a cell that an owner gave back, as its slot begins."""

    task_id: str
    cell: Cell
    #: The rent that waited for it to be sold again, and what of that goes back.
    waited: int
    rent: int
    #: Of its room, in samples, what was on sale and nobody has.
    unsold: float = 0.0


@dataclass(frozen=True, slots=True)
class GridChange:
    """The grid changed; the jobs named lost cells and need a new plan."""

    dropped: tuple[DroppedCells, ...] = ()
    #: Of cells that were given back and begin now.
    sold_again: tuple[SoldAgain, ...] = ()


@dataclass(frozen=True, slots=True)
class ReleasedCells:
    """Cells that went back on sale; those not held any more are left out."""

    cells: tuple[Cell, ...]
    #: What the rest of the job costs now, where its owner gave it back; ``None`` also where no plan
    #: for it ends in time.
    price: float | None = None
    #: What goes back to the owner for it (``engine.give_backs``).
    refund: int | None = None
    #: What goes back beyond that if all cells that begin soon are sold again.
    waits: int = 0


@dataclass(frozen=True, slots=True)
class ToldPrice:
    """What a job would cost at that place of the log."""

    task_id: str
    #: ``None`` where it has no plan.
    price: float | None
    schedule: Schedule | None
    parts: PriceParts | None
    refusal: Refusal | None = None


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


Outcome = Decision | ToldPrice | GridChange | ReleasedCells | Replan | MovedPlans
