"""What a provider gains by lying: days of a zone whose providers' true costs are known.

One provider misreports its ask, its availability or its capacity while the others ask
their costs; the days are run under posted rates and, beside them, under pay as asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.log import events
from scheduler.auction.prices import Settings, solve_prices
from scheduler.auction.prices.posted_rates import RateSettings, RegisteredNode, post_rates
from scheduler.auction.search.grid import Floats
from scheduler.experiments.auction.scenario import Scenario
from scheduler.types import Decision, Node, Task


@dataclass(frozen=True, slots=True)
class ProviderZone:
    """A zone, and how its days are run."""

    name: str
    #: Its nodes ask the same; providers' costs lie about that.
    scenario: Scenario
    providers: int = 5
    #: Share by which costs lie above and below, uniformly.
    cost_spread: float = 0.4
    past_days: int = 2
    #: Slots between two solves.
    solve_every: int = 2
    solve: Settings = field(default_factory=lambda: Settings(futures=3, most_tasks=900))
    rates: RateSettings = field(default_factory=RateSettings)


def _zone(name: str, *, load: float, ask: float) -> ProviderZone:
    scenario = Scenario(
        name,
        slots=48,
        nodes=10,
        mix="a100",
        # Nodes of 16,000 samples a slot, jobs of 25,000 samples.
        bids_per_slot=load * 6.4,
        most_epochs=3,
        a100_ask=ask,
    )
    return ProviderZone(name, scenario)


#: Work asked for over capacity; costs of a sample a twelfth, a half and a fifth of the
#: middle worth.
ZONES = (
    _zone("busy", load=2.4, ask=3_000.0),
    _zone("tight", load=1.5, ask=18_000.0),
    _zone("slack", load=0.4, ask=8_000.0),
)


@dataclass(frozen=True, slots=True)
class Report:
    """What a provider says of its nodes; the truth by default."""

    #: Its ask over its cost.
    ask: float = 1.0
    #: Share of its nodes that it does not list at all, rounded down to whole nodes.
    hidden: float = 0.0
    #: Capacity it lists over what its nodes have.
    capacity: float = 1.0
    #: Slots of the day its nodes are for sale in, as shares of it.
    begin: float = 0.0
    end: float = 1.0


TRUTH = Report()


@dataclass(frozen=True, slots=True)
class ProviderDay:
    """What a day came to."""

    #: What each provider was paid, less its true cost of what it sold.
    profits: tuple[float, ...]
    #: Worth of what was sold, less vendors and true costs.
    welfare: float
    revenue: float
    #: The least that a job paid above its vendor and its providers.
    least_margin: float
    #: Samples sold.
    sold: float


@dataclass(frozen=True, slots=True)
class _Listed:
    node: Node
    provider: int
    #: Cost per sample.
    cost: float


def draw_costs(zone: ProviderZone, seed: int) -> tuple[float, ...]:
    """Give each provider's cost of a slot of a node."""
    rng = np.random.default_rng([seed, 711])
    spread = rng.uniform(1.0 - zone.cost_spread, 1.0 + zone.cost_spread, zone.providers)
    return tuple((zone.scenario.a100_ask * spread).tolist())


def run_day(
    zone: ProviderZone,
    reports: Sequence[Report],
    *,
    seed: int,
    posts_rates: bool,
    past_days: Sequence[Sequence[Task]] | None = None,
) -> ProviderDay:
    """Run one day in which each provider reports what it does.

    Parameters
    ----------
    zone : ProviderZone
    reports : sequence of Report
        By provider.
    seed : int
        Of bids and costs; the same for the same.
    posts_rates : bool
        Providers are paid posted rates, else what they ask.
    past_days : sequence of sequences of Task, optional
        Bids of past days; days like this one without.
    """
    scenario = zone.scenario
    tasks = scenario.day(seed)
    if past_days is None:
        past_days = [scenario.day(1_000 * (back + 1) + seed) for back in range(zone.past_days)]
    listed = _list_nodes(zone, reports, draw_costs(zone, seed))
    engine = Engine(
        ZoneRules(
            base_memory=scenario.base_memory_gb,
            horizon_slots=scenario.slots,
            refusal_hints=False,
            posts_rates=posts_rates,
        )
    )
    for each in listed:
        engine.transition(events.NodeJoined(each.node))
    if posts_rates:
        engine.transition(_post(zone, listed, past_days))
    return _sell(zone, engine, tasks, past_days, listed, seed=seed)


def _list_nodes(
    zone: ProviderZone, reports: Sequence[Report], costs: Sequence[float]
) -> list[_Listed]:
    fleet, slots = zone.scenario.fleet(), zone.scenario.slots
    each = len(fleet) // zone.providers
    listed: list[_Listed] = []
    for provider, (report, cost) in enumerate(zip(reports, costs, strict=True)):
        own = fleet[provider * each : (provider + 1) * each]
        for node in own[int(report.hidden * each) :]:
            per_sample = cost / node.compute_capacity
            capacity = report.capacity * node.compute_capacity
            said = replace(
                node,
                ask=report.ask * per_sample * capacity,
                compute_capacity=capacity,
                available_from=int(report.begin * slots) if report.begin > 0 else None,
                available_until=int(report.end * slots) - 1 if report.end < 1 else None,
            )
            listed.append(_Listed(said, provider, per_sample))
    return listed


def _post(
    zone: ProviderZone, listed: Sequence[_Listed], past_days: Sequence[Sequence[Task]]
) -> events.RatesPosted:
    rates = post_rates(
        [RegisteredNode(each.node, str(each.provider)) for each in listed],
        past_days,
        day_slots=zone.scenario.slots,
        base_memory=zone.scenario.base_memory_gb,
        settings=zone.rates,
    )
    return events.RatesPosted(
        first_slot=0,
        block_slots=zone.rates.block_slots,
        day_slots=zone.scenario.slots,
        rates=rates,
    )


def _sell(
    zone: ProviderZone,
    engine: Engine,
    tasks: Sequence[Task],
    past_days: Sequence[Sequence[Task]],
    listed: Sequence[_Listed],
    *,
    seed: int,
) -> ProviderDay:
    by_node = {each.node.id: each for each in listed}
    profits = [0.0] * zone.providers
    welfare = revenue = sold = 0.0
    least_margin, slot = np.inf, -1
    prices = engine.prices()
    for index, task in enumerate(tasks):
        while slot < task.arrival_slot:
            slot += 1
            engine.transition(events.SlotAdvanced(slot))
            if slot % zone.solve_every == 0:
                engine.transition(
                    solve_prices(
                        engine,
                        slot=slot,
                        last_slot=zone.scenario.slots - 1,
                        day_start=0,
                        today=tasks[:index],
                        past_days=past_days,
                        seed=seed * 100_003 + index,
                        settings=zone.solve,
                    )
                )
            prices = engine.prices()
        decision = engine.transition(events.BidArrived(task, slot))
        assert isinstance(decision, Decision)
        if not decision.admitted or decision.schedule is None or decision.parts is None:
            continue
        paid = cost = 0.0
        for cell in decision.schedule.cells:
            each, k = by_node[cell.node], prices.node_ids.index(cell.node)
            samples = task.rates[each.node.gpu_type]
            pay = samples * float(prices.reserve_price[k, cell.slot - prices.first_slot])
            profits[each.provider] += pay - samples * each.cost
            paid, cost, sold = paid + pay, cost + samples * each.cost, sold + samples
        welfare += task.bid - decision.parts.vendor - cost
        revenue += decision.payment
        least_margin = min(least_margin, decision.payment - decision.parts.vendor - paid)
    return ProviderDay(tuple(profits), welfare, revenue, float(least_margin), sold)


@dataclass(frozen=True, slots=True)
class BestResponse:
    """The best that one provider can do by a fixed misreport while the others are truthful."""

    zone: str
    posts_rates: bool
    days: int
    #: Mean profit of a day by report, the truth first.
    profits: tuple[float, ...]
    best: Report
    #: What the best report earns above the truth on an average day, and half of the width
    #: of its 95 % confidence interval.
    gain: float
    gain_error: float
    #: The same where the best report is chosen for each day, afterwards.
    hindsight_gain: float
    #: Welfare with all truthful, over that under pay as asked.
    welfare: float
    #: The least that a job paid above its vendor and its providers.
    least_margin: float

    @property
    def truthful(self) -> float:
        """Mean profit of a day at the truth."""
        return self.profits[0]


#: Reports that are tried, besides the truth.
GRID = (
    *(Report(ask=ask) for ask in (0.5, 1.25, 1.5, 2.0, 3.0, 6.0)),
    Report(hidden=0.5),
    Report(capacity=0.7),
    Report(begin=0.3),
)


def find_best_response(
    zone: ProviderZone, *, seeds: Sequence[int], posts_rates: bool, grid: Sequence[Report] = GRID
) -> BestResponse:
    """Try every report of a grid on every day, the first provider against truthful others."""
    others = [TRUTH] * (zone.providers - 1)
    table = np.zeros((1 + len(grid), len(seeds)))
    welfare = base = 0.0
    least_margin = np.inf
    for j, seed in enumerate(seeds):
        for i, report in enumerate((TRUTH, *grid)):
            day = run_day(zone, [report, *others], seed=seed, posts_rates=posts_rates)
            table[i, j] = day.profits[0]
            least_margin = min(least_margin, day.least_margin)
            if report is TRUTH:
                welfare += day.welfare
        base += run_day(zone, [TRUTH, *others], seed=seed, posts_rates=False).welfare
    means = table.mean(axis=1)
    best = int(means[1:].argmax())
    gains = table[1 + best] - table[0]
    return BestResponse(
        zone=zone.name,
        posts_rates=posts_rates,
        days=len(seeds),
        profits=tuple(means.tolist()),
        best=grid[best],
        gain=float(gains.mean()),
        gain_error=_half_width(gains),
        hindsight_gain=float(np.maximum(table[1:].max(axis=0) - table[0], 0.0).mean()),
        welfare=welfare / base,
        least_margin=least_margin,
    )


@dataclass(frozen=True, slots=True)
class Misreports:
    """What random misreports of ask, availability and capacity gained."""

    zone: str
    tried: int
    #: Mean profit of a day at the truth, and mean gain over it.
    truthful: float
    gain: float
    gain_error: float
    #: Share of the misreports that gained more than a hundredth of the mean truthful profit.
    gaining: float


def draw_report(rng: np.random.Generator) -> Report:
    """Draw a misreport: always of the ask, often of the rest."""
    begin = float(rng.uniform(0.0, 0.8))
    end = float(rng.uniform(begin, 1.0))
    limited = rng.random() < 0.3 and end - begin > 0.2
    return Report(
        ask=0.3 * 20.0 ** rng.random(),
        hidden=0.5 if rng.random() < 1 / 3 else 0.0,
        capacity=float(rng.uniform(0.4, 1.0)) if rng.random() < 1 / 3 else 1.0,
        begin=begin if limited else 0.0,
        end=end if limited else 1.0,
    )


def try_misreports(zone: ProviderZone, *, seeds: Sequence[int], each: int) -> Misreports:
    """Try random misreports of one provider under posted rates, ``each`` on every day."""
    others = [TRUTH] * (zone.providers - 1)
    truthful: list[float] = []
    gains: list[float] = []
    for seed in seeds:
        rng = np.random.default_rng([seed, 4711])
        truth = run_day(zone, [TRUTH, *others], seed=seed, posts_rates=True).profits[0]
        truthful.append(truth)
        for _ in range(each):
            lie = run_day(zone, [draw_report(rng), *others], seed=seed, posts_rates=True)
            gains.append(lie.profits[0] - truth)
    mean = float(np.mean(truthful))
    return Misreports(
        zone=zone.name,
        tried=len(gains),
        truthful=mean,
        gain=float(np.mean(gains)),
        gain_error=_half_width(np.array(gains)),
        gaining=float(np.mean(np.array(gains) > 0.01 * mean)),
    )


def _half_width(values: Floats) -> float:
    """Give half of the width of a mean's 95 % confidence interval."""
    if len(values) < 2:
        return float("inf")
    return float(1.96 * values.std(ddof=1) / np.sqrt(len(values)))
