"""The solve: engine state and past bids in, a ``PricesSolved`` event out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any

import numpy as np

from scheduler.auction.engine.cell_prices import Prices
from scheduler.auction.engine.engine import Engine
from scheduler.auction.engine.reserves import find_floors, find_rates
from scheduler.auction.log.events import PricesSolved, RatesPosted
from scheduler.auction.prices.capacity import Supply
from scheduler.auction.prices.counted_bids import EmptyZone, select_counted, take_charges_off
from scheduler.auction.prices.demand_response import Demand
from scheduler.auction.prices.descent import Duals, compute_dual_value, descend
from scheduler.auction.prices.forecast import Forecast, forecast_futures
from scheduler.auction.prices.type_pools import TypePools, pool_by_type
from scheduler.auction.prices.worths import estimate_worths
from scheduler.auction.search.grid import Floats, Ints
from scheduler.types import NodeSpec, Task

#: Number of the arithmetic that follows, here and in what is called: raise it with every change
#: by which the same inputs lead to other prices or rates. Logs name it, and only solves and rates
#: of this one can be made again.
SOLVER = 7
#: Number of the random stream that worths are drawn from, beside those of a future's arrivals.
_WORTHS = 1
#: Bits of a type's price.
_PRICE_BITS = 40
#: Rates of one GPU type that nodes are packed by.
_USUAL_RATES = 8


@dataclass(frozen=True, slots=True)
class Settings:
    """Parameters of the solve; a zone may set them in ``ZoneRules.settings``."""

    #: Futures drawn; prices are the mean of what suits each.
    futures: int = 6
    #: Steps of the descent for each of them.
    iterations: int = 24
    #: Forecast tasks at most, over all futures.
    most_tasks: int = 1800
    #: First and last step, as shares of the worth of a sample at the margin.
    first_step: float = 0.2
    last_step: float = 0.01


@dataclass(frozen=True, slots=True)
class KnownBids:
    """The bids that a solve forecasts from, and the slots that it is for.

    Each is as ``show_outcome`` gives it. Those count that ``select_counted`` gives.
    """

    #: These five as ``forecast_futures`` takes them.
    slot: int
    last_slot: int
    day_start: int
    today: Sequence[Task]
    past_days: Sequence[Sequence[Task]]
    #: Ids of those that were admitted and not refunded; as for ``select_counted``.
    won: Collection[str] = frozenset()
    #: Bids that each of them stands for, where they are a sample.
    each: float = 1.0
    #: Share of ``slot`` that is still to come.
    left: float = 1.0
    #: What the event says that it was made of, besides counts.
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])


def read_settings(given: Mapping[str, Any]) -> Settings:
    """Give the solve's parameters among a zone's settings, by default those of ``Settings``."""
    names = {setting.name for setting in fields(Settings)}
    return Settings(**{name: value for name, value in given.items() if name in names})


def solve_prices(
    engine: Engine,
    known: KnownBids,
    *,
    seed: int,
    settings: Settings | None = None,
) -> PricesSolved:
    """Price what is left against what is expected.

    Pure: reads the engine, changes nothing, and draws from ``seed`` alone. The event carries the
    prices, so a replay takes them as they are; ``inputs`` says what they were made from, so that
    everybody can run the solve again on the state that the log gives at that position: no amount
    has a part in it.

    Parameters
    ----------
    engine : Engine
        At the position the event will follow.
    known : KnownBids
    seed : int
    settings : Settings, optional
    """
    chosen = settings or Settings()
    empty = EmptyZone(_find_least_paid(engine), base_memory=engine.rules.base_memory)
    today, *past_days = select_counted(
        [take_charges_off(day, engine.rules) for day in (known.today, *known.past_days)],
        empty,
        won=known.won,
    )
    futures = _forecast(known, today, past_days, empty, chosen, seed=seed)
    tasks = [task for future in futures for task in future.tasks]
    expected = sum(len(f.tasks) * f.weight * known.each for f in futures) / len(futures)
    prices = engine.prices()
    nodes = engine.nodes
    supply = _left(engine, prices, forecast_rate=_middling_rate(tasks))
    posted, worth = engine.posted_rates, dict[str, tuple[float, ...]]()
    if posted is not None and nodes:
        worth = _find_sample_worth(posted, nodes, supply, prices, futures, chosen, each=known.each)
        supply = _price_by_rates(posted, nodes, supply, worth)
    pools, type_of = pool_by_type(supply)
    begin = _find_lowest(supply, prices, pools, type_of)
    means = _average_prices(futures if nodes else (), pools, begin, chosen, each=known.each)
    lam, phi = means.compute_price, means.memory_price
    own_asks = posted is not None or len(pools.ask_type) > len(pools.types)
    node_price = find_node_prices(supply, lam, pools, type_of) if own_asks else lam[:, type_of]
    return PricesSolved(
        first_slot=prices.first_slot,
        compute_price={n.id: tuple(node_price[:, k].tolist()) for k, n in enumerate(nodes)},
        memory_price={n.id: tuple(phi[:, type_of[k]].tolist()) for k, n in enumerate(nodes)},
        own_asks=own_asks,
        sample_worth=worth,
        usual_rates=_usual_rates(tasks),
        seed=seed,
        inputs={
            **known.inputs,
            "bids_today": len(today),
            "past_days": len(past_days),
            "forecast_tasks": len(tasks),
            # Times the tasks: the bids expected, on average over the futures.
            "forecast_weight": float(expected / len(tasks)) if tasks else 0.0,
            # Bounds on the welfare still to be had, at the prices before and at these.
            "dual_value_before": float(means.value_before),
            "dual_value": float(means.value),
        },
    )


def _forecast(
    known: KnownBids,
    today: Sequence[Task],
    past_days: Sequence[Sequence[Task]],
    empty: EmptyZone,
    chosen: Settings,
    *,
    seed: int,
) -> list[Forecast]:
    """Give the futures of the bids that count, with what their jobs are worth."""
    futures = forecast_futures(
        slot=known.slot + 1.0 - known.left,
        last_slot=known.last_slot,
        day_start=known.day_start,
        today=today,
        past_days=past_days,
        most=max(chosen.most_tasks // chosen.futures, 1),
        futures=chosen.futures,
        seed=seed,
    )
    counted = chain(today, *past_days)
    worths = estimate_worths(counted, won=known.won, low_ask=empty.low_ask)
    return [
        replace(future, tasks=worths.draw(future.tasks, np.random.default_rng([seed, n, _WORTHS])))
        for n, future in enumerate(futures)
    ]


@dataclass(frozen=True, slots=True)
class _Averages:
    """Means over the futures of what a descent found for each."""

    #: Slots by types.
    compute_price: Floats
    memory_price: Floats
    #: Dual values at these prices, and at those that the descents began with.
    value: float
    value_before: float


def _average_prices(
    futures: Sequence[Forecast],
    pools: TypePools,
    begin: tuple[Floats, Floats],
    settings: Settings,
    *,
    each: float,
) -> _Averages:
    """Descend for every future; one without bids wants nothing, at no price."""
    lam = np.zeros_like(pools.compute)
    phi = np.zeros_like(pools.memory)
    value = before = 0.0
    for future in futures:
        if not future.tasks:
            continue
        demand = Demand(future.tasks, pools, np.full(len(future.tasks), future.weight * each))
        before += compute_dual_value(pools, demand, *begin) / len(futures)
        mean = _find_mean(pools, demand, begin, settings)
        lam += mean.compute_price / len(futures)
        phi += mean.memory_price / len(futures)
        value += mean.value / len(futures)
    return _Averages(lam, phi, value=value, value_before=before)


def _find_least_paid(engine: Engine) -> list[NodeSpec]:
    """Give the nodes at what they are paid at least: their asks, or their floors."""
    posted = engine.posted_rates
    if posted is None:
        return list(engine.nodes)
    floors = find_floors(posted, engine.nodes).tolist()
    return [
        replace(node, ask=floor * node.compute_capacity)
        for node, floor in zip(engine.nodes, floors, strict=True)
    ]


def _find_sample_worth(
    posted: RatesPosted,
    nodes: Sequence[NodeSpec],
    supply: Supply,
    prices: Prices,
    futures: Sequence[Forecast],
    settings: Settings,
    *,
    each: float,
) -> dict[str, tuple[float, ...]]:
    """Give what a sample of each type would cost if every node asked its floor.

    On all the room that is left, for sale at the rates in force or not: what nodes ask
    has no part in it. The descent begins at the day-ahead rates, so that few steps do
    not lower a rate that will soon be back: to wait for it would pay.
    """
    pools, type_of = pool_by_type(replace(supply, ask=find_floors(posted, nodes)))
    rates, _ = find_rates(posted, nodes, first_slot=supply.first_slot, slots=supply.slots)
    of_type = [rates[:, type_of == g] for g in range(len(pools.types))]
    middle = np.stack([found.mean(axis=1) for found in of_type], axis=1)
    # Where no room is left there is nothing to lower.
    most = np.stack([found.max(axis=1) for found in of_type], axis=1)
    _, memory_price = _find_lowest(supply, prices, pools, type_of)
    begin = np.maximum(middle - pools.ask, 0.0), memory_price
    total = np.zeros(pools.compute.shape)
    for future in futures:
        total += pools.ask
        if future.tasks:
            demand = Demand(future.tasks, pools, np.full(len(future.tasks), future.weight * each))
            mean = _find_mean(pools, demand, begin, settings)
            total += mean.compute_price + mean.memory_price * pools.memory_per_sample
    worth = np.where(pools.compute > 0, total / len(futures), most)
    return {name: tuple(worth[:, g].tolist()) for g, name in enumerate(pools.types)}


def _find_mean(
    pools: TypePools, demand: Demand, begin: tuple[Floats, Floats], settings: Settings
) -> Duals:
    """Descend once, and give the prices around which it ended."""
    _, mean = descend(
        pools,
        demand,
        iterations=settings.iterations,
        start=begin,
        first_step=float(settings.first_step),
        last_step=float(settings.last_step),
    )
    return mean


def _price_by_rates(
    posted: RatesPosted,
    nodes: Sequence[NodeSpec],
    supply: Supply,
    worth: Mapping[str, tuple[float, ...]],
) -> Supply:
    """Give what is on sale at posted rates, each cell for its rate."""
    rates, on_sale = find_rates(
        posted, nodes, first_slot=supply.first_slot, slots=supply.slots, sample_worth=worth
    )
    return replace(
        supply,
        compute=np.where(on_sale, supply.compute, 0.0),
        memory=np.where(on_sale, supply.memory, 0.0),
        ask=rates,
    )


def _usual_rates(tasks: Sequence[Task]) -> dict[str, tuple[float, ...]]:
    """Give the rates that most tasks have, by GPU type, in rising order."""
    counts: dict[str, Counter[float]] = {}
    for task in tasks:
        for name, rate in task.rates.items():
            if rate > 0:
                counts.setdefault(name, Counter())[rate] += 1
    return {
        name: tuple(sorted(sorted(found, key=lambda r: (-found[r], r))[:_USUAL_RATES]))
        for name, found in sorted(counts.items())
    }


def _middling_rate(tasks: Sequence[Task]) -> dict[str, float]:
    """Give a middling rate per GPU type."""
    rates: dict[str, list[float]] = {}
    for task in tasks:
        for name, rate in task.rates.items():
            rates.setdefault(name, []).append(rate)
    return {name: float(np.median(found)) for name, found in rates.items()}


def _left(engine: Engine, prices: Prices, *, forecast_rate: dict[str, float]) -> Supply:
    """Give the room left, slots by nodes, where nodes ask more than their rate, too.

    What is left of a cell below half a median task's rate serves no task and is
    not counted.
    """
    prices = engine.prices()
    nodes = engine.nodes
    base = engine.rules.base_memory
    capacity = np.array([n.compute_capacity for n in nodes], np.float64).reshape(1, -1)
    gigabytes = np.array([max(n.memory_capacity - base, 0.0) for n in nodes]).reshape(1, -1)
    on_sale = prices.is_available.T
    compute = np.where(on_sale, capacity * (1.0 - prices.compute_sold.T), 0.0)
    memory = np.where(on_sale, gigabytes * (1.0 - prices.memory_sold.T), 0.0)
    least = np.array([forecast_rate.get(n.gpu_type, 0.0) * 0.5 for n in nodes]).reshape(1, -1)
    useful = (compute >= least) & (compute > 0)
    return Supply(
        types=tuple(n.gpu_type for n in nodes),
        first_slot=prices.first_slot,
        compute=np.where(useful, compute, 0.0),
        memory=np.where(useful, np.maximum(memory, 0.0), 0.0),
        ask=np.array(
            [n.ask / n.compute_capacity if n.compute_capacity > 0 else 0.0 for n in nodes]
        ),
    )


def _find_lowest(
    supply: Supply, prices: Prices, pools: TypePools, type_of: Ints
) -> tuple[Floats, Floats]:
    """Give each type the least price among its nodes, slot by slot.

    Of compute, asks included, above the type's lowest and among nodes with room.
    """
    asked = prices.compute_price.T + (prices.reserve_price.T - pools.ask[type_of])
    found: list[Floats] = []
    for price in (np.where(supply.compute > 0, asked, np.inf), prices.memory_price.T):
        table = np.full((price.shape[0], len(pools.types)), np.inf)
        for k, g in enumerate(type_of.tolist()):
            table[:, g] = np.minimum(table[:, g], price[:, k])
        found.append(np.where(np.isfinite(table), table, 0.0))
    return found[0], found[1]


def find_node_prices(supply: Supply, price: Floats, pools: TypePools, type_of: Ints) -> Floats:
    """Give each node what its type's price is above its ask.

    The type's price is cut to few enough bits that a node's price and ask add up to
    it again exactly: nodes below the price cost the same to the last bit.
    """
    mantissa, exponent = np.frexp(price + pools.ask)
    total = np.ldexp(np.round(np.ldexp(mantissa, _PRICE_BITS)), exponent - _PRICE_BITS)
    return np.maximum(total[:, type_of] - supply.ask, 0.0)
