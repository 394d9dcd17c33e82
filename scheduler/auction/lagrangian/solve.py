"""The solve: engine state and past bids in, a ``PricesSolved`` event out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scheduler.auction.bounds.demand import Demand
from scheduler.auction.bounds.descent import descend, dual_value
from scheduler.auction.bounds.supply import Supply, grouped
from scheduler.auction.engine import Engine
from scheduler.auction.events import PricesSolved, task_to_json
from scheduler.auction.grid import Floats
from scheduler.auction.lagrangian.forecast import forecast_arrivals
from scheduler.auction.log import digest
from scheduler.types import Task


@dataclass(frozen=True, slots=True)
class Settings:
    """Parameters of the solve; a zone may set them in ``ZoneRules.settings``."""

    #: Steps of the descent.
    iterations: int = 60
    #: Forecast tasks at most.
    most_tasks: int = 3000
    #: First and last step, as shares of a middling worth per sample.
    first_step: float = 0.2
    last_step: float = 0.01


def solve_prices(
    engine: Engine,
    *,
    slot: int,
    last_slot: int,
    day_start: int,
    today: Sequence[Task],
    past_days: Sequence[Sequence[Task]],
    seed: int,
    settings: Settings | None = None,
    each: float = 1.0,
    given: Mapping[str, Any] | None = None,
    salt: str = "",
) -> PricesSolved:
    """Price what is left against what is expected.

    Pure: reads the engine, changes nothing, and draws from ``seed`` alone. The
    event carries the prices, so a replay takes them as they are; ``inputs`` says
    what they were made from, so that the solve itself can be run again on the
    state the log gives at that position. What would tell about single bids (a
    digest can be guessed where there is one of them, and a dual value is made of
    them) is ``private``: a published log commits to it.

    Parameters
    ----------
    engine : Engine
        At the position the event will follow.
    slot, last_slot, day_start, today, past_days
        As ``forecast_arrivals`` takes them.
    seed : int
    settings : Settings, optional
    each : float
        Bids that each of the given ones stands for, where they are a sample.
    given : mapping, optional
        Where the bids were taken from; goes to ``inputs`` as it is.
    salt : str
        Secret text for the commitment to ``private``.
    """
    chosen = settings or Settings()
    forecast = forecast_arrivals(
        slot=slot,
        last_slot=last_slot,
        day_start=day_start,
        today=today,
        past_days=past_days,
        most=chosen.most_tasks,
        seed=seed,
    )
    prices = engine.prices()
    nodes = engine.nodes
    supply, start = _left(engine, forecast_rate=_middling_rate(forecast.tasks))
    pools, pool_of = grouped(supply)
    lam = np.zeros_like(pools.compute)
    phi = np.zeros_like(pools.memory)
    value = before = 0.0
    weight = forecast.weight * each
    if forecast.tasks and nodes:
        demand = Demand(forecast.tasks, pools, np.full(len(forecast.tasks), weight))
        begin = _pooled(start, pool_of, len(pools.types))
        before = dual_value(pools, demand, *begin)
        _, mean = descend(
            pools,
            demand,
            iterations=chosen.iterations,
            start=begin,
            first_step=chosen.first_step,
            last_step=chosen.last_step,
        )
        lam, phi, value = mean.compute_price, mean.memory_price, mean.value
    return PricesSolved(
        first_slot=prices.first_slot,
        compute_price={n.id: tuple(lam[:, pool_of[k]].tolist()) for k, n in enumerate(nodes)},
        memory_price={n.id: tuple(phi[:, pool_of[k]].tolist()) for k, n in enumerate(nodes)},
        seed=seed,
        inputs={
            "position": engine.position,
            "slot": slot,
            "last_slot": last_slot,
            "day_start": day_start,
            "bids_today": len(today),
            "past_days": len(past_days),
            "forecast_tasks": len(forecast.tasks),
            "forecast_weight": float(weight),
            "settings": asdict(chosen),
            **(given or {}),
        },
        private={
            "forecast_digest": digest([task_to_json(task) for task in forecast.tasks]),
            # Bounds on the welfare still to be had, at the prices before and at these.
            "dual_value_before": float(before),
            "dual_value": float(value),
        },
        salt=salt,
    )


def _middling_rate(tasks: Sequence[Task]) -> dict[str, float]:
    """Give a middling rate per GPU type."""
    rates: dict[str, list[float]] = {}
    for task in tasks:
        for name, rate in task.rates.items():
            rates.setdefault(name, []).append(rate)
    return {name: float(np.median(found)) for name, found in rates.items()}


def _left(
    engine: Engine, *, forecast_rate: dict[str, float]
) -> tuple[Supply, tuple[Floats, Floats]]:
    """Give the room left and the prices now, slots by nodes.

    What is left of a cell below half a middling task's rate serves nobody and is
    not counted.
    """
    prices = engine.prices()
    nodes = engine.nodes
    base = engine.rules.base_memory
    capacity = np.array([n.compute_capacity for n in nodes], np.float64).reshape(1, -1)
    gigabytes = np.array([max(n.memory_capacity - base, 0.0) for n in nodes]).reshape(1, -1)
    on_sale = prices.on_sale.T
    compute = np.where(on_sale, capacity * (1.0 - prices.compute_sold.T), 0.0)
    memory = np.where(on_sale, gigabytes * (1.0 - prices.memory_sold.T), 0.0)
    least = np.array([forecast_rate.get(n.gpu_type, 0.0) * 0.5 for n in nodes]).reshape(1, -1)
    useful = (compute >= least) & (compute > 0)
    supply = Supply(
        types=tuple(n.gpu_type for n in nodes),
        first_slot=prices.first_slot,
        compute=np.where(useful, compute, 0.0),
        memory=np.where(useful, np.maximum(memory, 0.0), 0.0),
        ask=np.array(
            [n.ask / n.compute_capacity if n.compute_capacity > 0 else 0.0 for n in nodes]
        ),
    )
    return supply, (prices.compute_price.T, prices.memory_price.T)


def _pooled(start: tuple[Floats, Floats], pool_of: np.ndarray, pools: int) -> tuple[Floats, Floats]:
    """Give each pool the least price among its nodes, slot by slot."""
    out: list[Floats] = []
    for price in start:
        table = np.full((price.shape[0], pools), np.inf)
        for k, g in enumerate(pool_of.tolist()):
            table[:, g] = np.minimum(table[:, g], price[:, k])
        out.append(np.where(np.isfinite(table), table, 0.0))
    return out[0], out[1]
