"""The scheduler's value of a job that is bid for, quoted or planned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from scheduler import types as scheduler


class TaskWork(Protocol):
    """Measured work, of a bid that is stored or of one that is only quoted."""

    @property
    def compute_demand(self) -> float: ...
    @property
    def memory_demand_gb(self) -> float: ...
    @property
    def rates(self) -> Mapping[str, float]: ...


def build_task(
    work: TaskWork,
    *,
    task_id: str,
    arrival_slot: int,
    deadline_slot: int,
    bid: float = 0.0,
    vendors: tuple[scheduler.LaborVendor, ...] = (),
    owner: str = "",
    verified_only: bool = False,
) -> scheduler.Task:
    """The scheduler's value of measured work, and of the bid for it if there is one."""
    return scheduler.Task(
        id=task_id,
        arrival_slot=arrival_slot,
        deadline_slot=deadline_slot,
        compute_demand=work.compute_demand,
        memory_demand=work.memory_demand_gb,
        bid=bid,
        rates=dict(sorted(work.rates.items())),
        vendors=vendors,
        owner=owner,
        verified_only=verified_only,
    )
