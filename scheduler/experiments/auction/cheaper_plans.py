"""Plans that have not started, made again at the prices of now.

A job is planned when its bid is decided, at prices that forecast who comes after. Later prices
know more: a plan that moves to cells worth less would leave the scarce ones to bids to come. The
owner pays what was agreed and the promise stays. It is an experiment because it has not been
shown to gain enough (``waiting_plans``): under additive prices few waiting plans can be bettered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.auction.engine.engine import Engine
from scheduler.auction.log.events import PlanMove, PlansMoved, TaskReplanned
from scheduler.auction.log.outcomes import Replan
from scheduler.auction.search.room import PromisedJob
from scheduler.types import Cell, Task

#: A move must take off at least this share of what a plan's cells are worth.
LEAST_SAVING = 0.02
#: Share by which sums of the same asks may differ.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class _CellsWorth:
    """What a job's cells are worth at prices of now, and what their nodes ask."""

    total: float
    operational: float


def find_cheaper_plans(
    engine: Engine, *, jobs: Sequence[PromisedJob], slot: int, ends_later: bool = False
) -> tuple[PlanMove, ...]:
    """Find cheaper cells for plans that have not started, one after the other.

    Parameters
    ----------
    engine : Engine
        A replica. It is left with the moves made.
    jobs : sequence of PromisedJob
        Jobs that hold all of their cells, from ``slot`` on.
    slot : int
        First slot whose cells may change.
    ends_later : bool
        A plan may end later than the one it replaces, by its deadline still.

    Returns
    -------
    tuple of PlanMove
        Each is in time, and its nodes ask no more than those it leaves.
    """
    held: dict[str, list[Cell]] = {}
    for one in engine.reservations():
        held.setdefault(one.task_id, []).append(one.cell)
    moves: list[PlanMove] = []
    for job in sorted(jobs, key=lambda job: (job.deadline_slot, job.task_id)):
        cells = tuple(sorted(held.get(job.task_id, ())))
        if cells and cells[0].slot >= slot:
            end = job.deadline_slot if ends_later else min(job.deadline_slot, cells[-1].slot)
            move = _find_cheaper(engine, job, cells, slot, end)
            if move is not None:
                moves.append(move)
    return tuple(moves)


def _find_cheaper(
    engine: Engine, job: PromisedJob, cells: tuple[Cell, ...], slot: int, end: int
) -> PlanMove | None:
    """Make one job's plan again, up to an end; the engine is as it was if that saves nothing."""
    before = _sum_worth(engine, job, cells)
    task = Task(
        id=job.task_id,
        arrival_slot=slot,
        deadline_slot=end,
        compute_demand=job.compute_demand,
        memory_demand=job.memory_demand,
        bid=0.0,
        rates=job.rates,
        verified_only=job.verified_only,
    )
    trial = engine.replica()
    found = trial.transition(
        TaskReplanned(task, slot, avoided_nodes=tuple(sorted(job.avoided_nodes)))
    )
    assert isinstance(found, Replan)
    if found.schedule is None or found.parts is None or found.late:
        return None
    if found.parts.total > before.total * (1 - LEAST_SAVING) or before.total <= 0:
        return None
    if found.parts.operational > before.operational * (1 + _ROUNDING):
        return None
    move = PlanMove(
        task_id=job.task_id,
        deadline_slot=task.deadline_slot,
        compute_demand=job.compute_demand,
        memory_demand=job.memory_demand,
        rates=job.rates,
        verified_only=job.verified_only,
        cells=found.schedule.cells,
    )
    engine.transition(PlansMoved((move,), slot))
    return move


def _sum_worth(engine: Engine, job: PromisedJob, cells: tuple[Cell, ...]) -> _CellsWorth:
    prices = engine.prices()
    nodes = {node.id: (k, node) for k, node in enumerate(engine.nodes)}
    total = operational = 0.0
    for cell in cells:
        k, node = nodes[cell.node]
        at, rate = cell.slot - prices.first_slot, job.rates.get(node.gpu_type, 0.0)
        asked = node.ask * rate / node.compute_capacity if node.compute_capacity > 0 else 0.0
        operational += asked
        total += asked + rate * float(prices.compute_price[k, at])
        total += job.memory_demand * float(prices.memory_price[k, at])
    return _CellsWorth(total=total, operational=operational)
