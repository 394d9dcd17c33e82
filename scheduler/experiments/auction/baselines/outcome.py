"""What a baseline made of a day."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.types import Schedule


@dataclass(frozen=True, slots=True)
class BaselineOutcome:
    """Tasks served and what that was worth."""

    welfare: float
    #: Schedule by task id; places as the supply numbers them, as text.
    served: dict[str, Schedule]
