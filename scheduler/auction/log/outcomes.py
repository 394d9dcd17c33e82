"""What an event led to, as frozen values; ``codec`` writes and reads them exactly."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.types import Cell, Decision, PriceParts, Schedule


@dataclass(frozen=True, slots=True)
class DroppedCells:
    """Cells a job held and holds no longer."""

    task_id: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class GridChange:
    """The grid changed; the jobs named lost cells and need a new plan."""

    dropped: tuple[DroppedCells, ...] = ()
    #: Beats that were passed over as one came; no prices could come into force at them.
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class ReleasedCells:
    """Cells that went back on sale; those not held any more are left out."""

    cells: tuple[Cell, ...]
    #: What the rest of the job costs now, where its owner gave it back; ``None`` also where no plan
    #: for it ends in time.
    price: float | None = None
    #: What goes back to the owner for it (``engine.give_backs``).
    refund: int | None = None


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
