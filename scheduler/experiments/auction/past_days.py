"""Past days of a simulated market, whose bids are known and whose sales are not."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from scheduler.types import Task


def list_past_days(
    past_days: Sequence[Sequence[Task]], *, won: Collection[str] | None = None
) -> tuple[list[list[Task]], set[str]]:
    """Give the bids of past days, and the ids of those that won.

    Without ``won`` every bid has won, so that all of them count. They get ids of their own: days
    may use the same.
    """
    days = [
        [replace(task, id=f"{back} days before {task.id}") for task in day]
        for back, day in enumerate(past_days, start=1)
    ]
    ids = {
        past.id
        for day, own in zip(days, past_days, strict=True)
        for past, task in zip(day, own, strict=True)
        if won is None or task.id in won
    }
    return days, ids
