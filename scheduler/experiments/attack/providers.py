"""What a provider gains by lying: days of a zone whose providers' true costs are known.

One provider misreports its ask, its availability or its capacity while the others ask
their costs; the days are run under posted rates and, beside them, under pay as asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.log import events
from scheduler.auction.log.rules import BEATS_PER_SLOT
from scheduler.auction.prices import Settings
from scheduler.auction.prices.posted_rates import (
    RateSettings,
    RateTerms,
    RegisteredNode,
    post_rates,
)
from scheduler.auction.prices.worths import show_outcome
from scheduler.experiments.attack.findings import Finding, Measure, find_worst
from scheduler.experiments.auction.beats import (
    DecidedDay,
    SimulatedBeats,
    join_for_a_day,
    list_beats,
    list_past_bids,
    make_day_rules,
)
from scheduler.experiments.auction.run import decide_days, make_rules
from scheduler.experiments.auction.scenario import Scenario
from scheduler.types import Decision, NodeSpec, Task


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
    #: Beats of a slot.
    beats: int = BEATS_PER_SLOT
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
class _ListedNode:
    node: NodeSpec
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
    past_days: Sequence[DecidedDay] | None = None,
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
    past_days : sequence of DecidedDay, optional
        Days like this one without.
    """
    scenario = zone.scenario
    tasks = scenario.day(seed)
    if past_days is None:
        past_days = _decide_past(zone, seed)
    listed = _list_nodes(zone, reports, draw_costs(zone, seed))
    rules = ZoneRules(
        base_memory=scenario.base_memory_gb,
        refusal_hints=False,
        posts_rates=posts_rates,
        beats_per_slot=zone.beats,
    )
    engine = Engine(
        make_day_rules(
            rules,
            slots=scenario.slots,
            past_days=len(past_days),
            seed=seed,
            settings=zone.solve,
        )
    )
    join_for_a_day(engine, [each.node for each in listed], slots=scenario.slots)
    if posts_rates:
        engine.transition(_post(zone, listed, past_days))
    return _sell(zone, engine, tasks, past_days, listed)


@lru_cache(maxsize=16)
def _decide_past(zone: ProviderZone, seed: int) -> list[DecidedDay]:
    """Give the days before one, at what nodes ask."""
    return decide_days(
        zone.scenario,
        [zone.scenario.day(1_000 * (back + 1) + seed) for back in range(zone.past_days)],
        rules=make_rules(zone.scenario, "lagrangian"),
        seed=seed,
        settings=zone.solve,
    )


def _list_nodes(
    zone: ProviderZone, reports: Sequence[Report], costs: Sequence[float]
) -> list[_ListedNode]:
    fleet, slots = zone.scenario.fleet(), zone.scenario.slots
    each = len(fleet) // zone.providers
    listed: list[_ListedNode] = []
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
            listed.append(_ListedNode(said, provider, per_sample))
    return listed


def _post(
    zone: ProviderZone, listed: Sequence[_ListedNode], past_days: Sequence[DecidedDay]
) -> events.RatesPosted:
    rates = post_rates(
        [RegisteredNode(each.node, str(each.provider)) for each in listed],
        [day.bids for day in past_days],
        RateTerms(zone.scenario.slots, zone.scenario.base_memory_gb, settings=zone.rates),
        won=frozenset[str]().union(*(day.won for day in past_days)),
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
    past_days: Sequence[DecidedDay],
    listed: Sequence[_ListedNode],
) -> ProviderDay:
    by_node = {each.node.id: each for each in listed}
    profits = [0.0] * zone.providers
    welfare = revenue = sold = 0.0
    least_margin = np.inf
    seen, won = list_past_bids(past_days, slots=zone.scenario.slots)
    beats = SimulatedBeats(engine, engine.transition, seen, won)
    for beat, part in list_beats(tasks, engine.rules):
        beats.reach(beat)
        prices = engine.prices()
        for task in part:
            decision = engine.transition(events.BidArrived(task, beat.slot))
            assert isinstance(decision, Decision)
            seen.append(show_outcome(task, decision))
            if not decision.admitted or decision.schedule is None or decision.parts is None:
                continue
            won.add(task.id)
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


#: Reports that are tried, besides the truth.
GRID = (
    *(Report(ask=ask) for ask in (0.5, 1.25, 1.5, 2.0, 3.0, 6.0)),
    Report(hidden=0.5),
    Report(capacity=0.7),
    Report(begin=0.3),
)
#: Most of its truthful profit that a provider may gain by a fixed misreport.
MOST_GAIN = 0.01


@dataclass(frozen=True, slots=True)
class ProviderSize:
    """How much is run."""

    days: int
    grid: tuple[Report, ...]
    #: Random misreports on each day.
    misreports: int


QUICK = ProviderSize(
    days=3, grid=(Report(ask=1.5), Report(ask=3.0), Report(hidden=0.5)), misreports=3
)
FULL = ProviderSize(days=12, grid=GRID, misreports=30)


def run(size: ProviderSize) -> Iterator[Finding]:
    """Let a provider of every zone respond as well as it can, under both rules of pay."""
    for zone in ZONES:
        for posts_rates in (True, False):
            yield find_best_response(
                zone, seeds=range(size.days), posts_rates=posts_rates, grid=size.grid
            )
        yield try_misreports(zone, seeds=range(size.days), each=size.misreports)


def find_best_response(
    zone: ProviderZone, *, seeds: Sequence[int], posts_rates: bool, grid: Sequence[Report] = GRID
) -> Finding:
    """Try every report of a grid on every day, the first provider against truthful others.

    Profits and gains are shares of what buyers pay on that day while all are truthful. The
    best report is the one that is best over all days; ``hindsight`` picks one for each day.
    """
    others = [TRUTH] * (zone.providers - 1)
    truthful: list[float] = []
    welfare: list[float] = []
    gains = np.zeros((len(grid), len(seeds)))
    for j, seed in enumerate(seeds):
        truth = run_day(zone, [TRUTH, *others], seed=seed, posts_rates=posts_rates)
        as_asked = run_day(zone, [TRUTH, *others], seed=seed, posts_rates=False)
        truthful.append(truth.profits[0] / truth.revenue)
        welfare.append(truth.welfare / as_asked.welfare - 1.0)
        for i, report in enumerate(grid):
            lie = run_day(zone, [report, *others], seed=seed, posts_rates=posts_rates)
            gains[i, j] = (lie.profits[0] - truth.profits[0]) / truth.revenue
    best = int(gains.mean(axis=1).argmax())
    gain, profit = Measure.of(gains[best].tolist()), Measure.of(truthful)
    verdict = gain.judge(most=MOST_GAIN * profit.mean)
    if zone.name == "busy":
        verdict = find_worst(verdict, profit.judge(least=0.0))
    return Finding(
        experiment="providers",
        case=f"best response {_name(grid[best])}, {_rule(posts_rates)}, {zone.name}",
        measures={
            "truthful_profit": profit,
            "gain": gain,
            "hindsight_gain": Measure.of(np.maximum(gains.max(axis=0), 0.0).tolist()),
            "welfare": Measure.of(welfare),
        },
        goal="gain at most 1 % of the truthful profit" if posts_rates else "none: shown beside",
        verdict=verdict if posts_rates else None,
    )


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


def try_misreports(zone: ProviderZone, *, seeds: Sequence[int], each: int) -> Finding:
    """Try random misreports of one provider under posted rates, ``each`` on every day."""
    others = [TRUTH] * (zone.providers - 1)
    truthful: list[float] = []
    gains: list[float] = []
    for seed in seeds:
        rng = np.random.default_rng([seed, 4711])
        truth = run_day(zone, [TRUTH, *others], seed=seed, posts_rates=True)
        truthful.append(truth.profits[0] / truth.revenue)
        for _ in range(each):
            lie = run_day(zone, [draw_report(rng), *others], seed=seed, posts_rates=True)
            gains.append((lie.profits[0] - truth.profits[0]) / truth.revenue)
    profit, gain = Measure.of(truthful), Measure.of(gains)
    return Finding(
        experiment="providers",
        case=f"random misreports, {_rule(True)}, {zone.name}",
        measures={"truthful_profit": profit, "gain": gain},
        goal="mean gain at most 1 % of the truthful profit",
        verdict=gain.judge(most=MOST_GAIN * profit.mean),
    )


def _rule(posts_rates: bool) -> str:
    return "posted rates" if posts_rates else "pay as asked"


def _name(report: Report) -> str:
    if report.hidden:
        return f"hiding {report.hidden:g}"
    if report.capacity < 1:
        return f"capacity x{report.capacity:g}"
    if report.begin > 0:
        return f"from {report.begin:g} of the day"
    return f"ask x{report.ask:g}"
