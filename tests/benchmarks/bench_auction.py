"""``python -m tests.benchmarks.bench_auction [--quick]``: one JSON line per case.

Every claim is a ratio of two times taken in one run, or a time with its goal.
Times are of this process's CPU, best of several rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from scheduler.auction import Engine, ZoneRules, entry_from_json, entry_to_json, verify
from scheduler.auction.log import events
from scheduler.auction.search.grid import Grid
from scheduler.auction.search.task_search import Search
from scheduler.experiments.auction.integer_program import solve_with_highs
from scheduler.experiments.auction.max_form.engine import make_engine
from scheduler.experiments.auction.printed_search import printed_dp
from scheduler.types import Horizon, Task
from tests.benchmarks import auction_day
from tests.benchmarks.smallest import add_smallest
from tests.properties.auction_cases import lay_out
from tests.unit.scheduler.auction.builders import enter


def report(case: str, *, goal: str, ok: bool, **figures: float) -> None:
    """Print one case."""
    rounded = {name: float(f"{value:.4g}") for name, value in figures.items()}
    load = round(os.getloadavg()[0], 1)
    line = {"case": case, **rounded, "goal": goal, "ok": bool(ok), "load": load}
    print(json.dumps(line), flush=True)


def best_of(action: Callable[[], object], rounds: int) -> float:
    """Give the shortest CPU time of an action, seconds."""
    times: list[float] = []
    for _ in range(rounds):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return min(times)


def hard_grid(*, nodes: int, slots: int, seed: int, asks: str) -> Grid:
    """Give a grid on which every cell has its own prices."""
    rng = np.random.default_rng(seed)
    grid = Grid(horizon=Horizon(first_slot=0, slots=slots), base_memory=2.0)
    for node in auction_day.nodes(nodes, seed=seed, asks=asks):
        grid.add_node(node)
    grid.compute_price[:] = rng.uniform(0.0, 1.0, grid.compute_price.shape)
    grid.memory_price[:] = rng.uniform(0.0, 300.0, grid.memory_price.shape)
    grid.compute_free[rng.random(grid.compute_free.shape) < 0.3] = 0.0
    return grid


def wide_tasks(count: int, *, slots: int) -> list[Task]:
    """Give tasks that may use every slot."""
    return [
        replace(task, arrival_slot=0, deadline_slot=slots - 1)
        for task in auction_day.tasks(4, seed=5)[:count]
    ]


def printed_time(grid: Grid, task: Task, *, slots: int) -> float:
    """Time the printed program for each vendor of a task, 100 samples a step."""
    rate = np.array([task.rates[node.gpu_type] for node in grid.nodes])
    cost = np.repeat((grid.ask_per_sample * rate).reshape(1, -1), slots, axis=0)
    steps = (rate // 100).astype(np.int64)
    demand = int(np.ceil(task.compute_demand / 100))

    def run() -> None:
        for delay in [v.delay_slots for v in task.vendors] or [0]:
            printed_dp(
                grid.compute_price,
                grid.memory_price,
                cost,
                steps,
                rate,
                task.memory_demand,
                demand,
                delay,
                slots - 1,
            )

    return best_of(run, 1)


def bench_search(rounds: int, *, smallest: bool) -> None:
    """One decision against the printed program, and the curve against one decision."""
    slots, nodes = (24, 4) if smallest else (auction_day.SLOTS, 100)
    for additive in (True, False):
        form = "additive" if additive else "max"
        for asks in ("by type", "by node"):
            grid = hard_grid(nodes=nodes, slots=slots, seed=1, asks=asks)
            ones: list[float] = []
            curves: list[float] = []
            ratios: list[float] = []
            for task in wide_tasks(1 if smallest else 12, slots=slots):

                def search(
                    task: Task = task, grid: Grid = grid, additive: bool = additive
                ) -> Search:
                    return lay_out(grid, task, additive=additive)

                one = best_of(lambda s=search: s().find_plan(slots - 1), rounds)
                curve = best_of(
                    lambda s=search: s().trace_price_curve(first=0, last=slots - 1), rounds
                )
                ones.append(one)
                curves.append(curve / one)
                ratios.append(printed_time(grid, task, slots=slots) / one)
            least = 100.0 if additive else 1.0
            report(
                f"one decision, {form} prices, asks {asks}, {nodes} nodes x {slots} slots",
                goal="printed program >= 100x slower, under 0.1 ms"
                if additive
                else "not slower than the printed program",
                ok=median(ratios) >= least and (not additive or median(ones) < 1e-4),
                ms_median=median(ones) * 1e3,
                ms_worst=max(ones) * 1e3,
                printed_over_exact_median=median(ratios),
                printed_over_exact_worst=min(ratios),
            )
            report(
                f"whole curve, {form} prices, asks {asks}, {nodes} nodes x {slots} slots",
                goal="at most 3x one decision",
                ok=median(curves) <= 3.0,
                curve_over_one_median=median(curves),
                curve_over_one_worst=max(curves),
            )


def bench_highs(*, smallest: bool) -> None:
    """Exact search against HiGHS on the same model."""
    models = ((True, 100, 144), (False, 10, 24))
    for additive, nodes, slots in ((True, 4, 24), (False, 4, 12)) if smallest else models:
        grid = hard_grid(nodes=nodes, slots=slots, seed=2, asks="by node")
        ratios: list[float] = []
        for task in wide_tasks(3, slots=slots):
            task = replace(task, vendors=(), compute_demand=min(task.compute_demand, 20000.0))

            def search(task: Task = task, grid: Grid = grid, additive: bool = additive) -> Search:
                return lay_out(grid, task, additive=additive)

            ours = best_of(lambda s=search, d=slots - 1: s().find_plan(d), 20)
            start = time.process_time()
            value = solve_with_highs(
                grid,
                task,
                begin=0,
                deadline=slots - 1,
                additive=additive,
                residual=True,
                time_limit_s=600.0,
            )
            ratios.append((time.process_time() - start) / ours)
            plan = search().find_plan(slots - 1)
            assert plan is not None
            assert abs(plan.price - value) <= 1e-6 * value, (plan.price, value)
        report(
            f"HiGHS on the same model, {'additive' if additive else 'max'} prices, "
            f"{nodes} nodes x {slots} slots",
            goal="at least 1000x slower than the search",
            ok=median(ratios) >= 1000.0,
            highs_over_exact_median=median(ratios),
            highs_over_exact_worst=min(ratios),
        )


def run_day(*, bids: int, nodes: int, hints: bool, asks: str) -> float:
    """Decide a day's bids under ``residual``; give the CPU seconds."""
    engine = make_engine(
        ZoneRules(
            policy="residual", base_memory=2.0, horizon_slots=auction_day.SLOTS, refusal_hints=hints
        )
    )
    for node in auction_day.nodes(nodes, asks=asks):
        engine.transition(events.NodeJoined(node))
    day = auction_day.tasks(bids)
    engine.quote(day[0], slot=0)
    start = time.process_time()
    for event in list_arrivals(day):
        engine.transition(event)
    return time.process_time() - start


def list_arrivals(day: list[Task]) -> Iterator[events.Event]:
    """Give a day's bids, and the slots between them."""
    slot = 0
    for task in day:
        if task.arrival_slot != slot:
            slot = task.arrival_slot
            yield events.SlotAdvanced(slot)
        yield events.BidArrived(task, slot)


def bench_day(*, bids: int, nodes: int) -> None:
    """A full paper day under ``residual``."""
    for asks in ("by type", "by node"):
        for hints in (False, True):
            spent = run_day(bids=bids, nodes=nodes, hints=hints, asks=asks)
            report(
                f"paper day, residual, {bids} bids a slot, {nodes} nodes, asks {asks}, "
                f"{'with' if hints else 'no'} hints to refused bids",
                goal="at most 5 s",
                ok=spent <= 5.0,
                s=spent,
                decisions_per_s=bids * auction_day.SLOTS / spent,
            )


def bench_replay(*, bids: int, nodes: int) -> None:
    """The replay of a paper day's log, at asks."""
    rules = ZoneRules(base_memory=2.0, horizon_slots=auction_day.SLOTS, refusal_hints=False)
    engine = Engine(rules)
    log = [engine.apply(events.NodeJoined(node)) for node in auction_day.nodes(nodes)]
    decided = 0
    for event in list_arrivals(auction_day.tasks(bids)):
        log += enter(engine, event)
        decided += isinstance(event, events.BidArrived)
    start = time.process_time()
    found = verify(log, rules=rules)
    spent = time.process_time() - start
    assert found.ok, found.problem
    report(
        "replay with every decision and hash compared",
        goal="at least 5000 decisions/s",
        ok=decided / spent >= 5000,
        decisions_per_s=decided / spent,
    )


def bench_restart(wanted: int) -> None:
    """From a snapshot and logged decisions, as JSON text, to a live engine."""
    engine = Engine(ZoneRules(base_memory=2.0, horizon_slots=auction_day.SLOTS))
    for node in auction_day.nodes(50):
        engine.apply(events.NodeJoined(node))
    snapshot = json.dumps(engine.snapshot())
    day = auction_day.tasks(80)
    lines: list[str] = []

    def log(event: events.Event) -> None:
        lines.extend(json.dumps(entry_to_json(entry)) for entry in enter(engine, event))

    days = 0
    while len(lines) < wanted:
        begin = days * auction_day.SLOTS
        for number, task in enumerate(day):
            slot = begin + task.arrival_slot
            if slot > engine.horizon.first_slot:
                log(events.SlotAdvanced(slot))
            task = replace(
                task,
                id=f"task-{days}-{number}",
                arrival_slot=slot,
                deadline_slot=begin + task.deadline_slot,
            )
            log(events.BidArrived(task, slot))
        days += 1
    del lines[wanted:]
    head = json.loads(lines[-1])["hash"]
    start = time.process_time()
    engine = Engine.restore(json.loads(snapshot))
    for line in lines:
        entry = entry_from_json(json.loads(line))
        assert engine.apply(entry.event).hash == entry.hash
    spent = time.process_time() - start
    assert engine.head_hash == head
    report(
        f"restart from a snapshot and {wanted} logged decisions",
        goal="at most 20 s per 100,000",
        ok=spent * 100_000 / wanted <= 20.0,
        s=spent,
        decisions_per_s=wanted / spent,
    )


def bench_cold() -> None:
    """Import, and the first decision with and without compiled code on disk."""
    program = (
        "import time; t = time.perf_counter()\n"
        "from tests.benchmarks import auction_day as day\n"
        "from scheduler.auction import Engine, ZoneRules, events\n"
        "i = time.perf_counter() - t\n"
        "e = Engine(ZoneRules())\n"
        "[e.apply(events.NodeJoined(n)) for n in day.nodes(4)]\n"
        "task = day.tasks(1)[0]\n"
        "e.quote(task, slot=0); e.transition(events.BidArrived(task, 0))\n"
        "print(i, time.perf_counter() - t)"
    )
    with tempfile.TemporaryDirectory() as home:
        for state in ("nothing", "compiled code"):
            done = subprocess.run(
                [sys.executable, "-c", program],
                env={"XDG_CACHE_HOME": home, "PATH": "/usr/bin:/bin"},
                capture_output=True,
                text=True,
                check=True,
            )
            imported, decided = (float(x) for x in done.stdout.split())
            report(
                f"first decision of a process, {state} on disk",
                goal="stated",
                ok=True,
                import_s=imported,
                first_decision_s=decided,
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bench_auction")
    parser.add_argument("--quick", action="store_true", help="smaller day and shorter log")
    add_smallest(parser)
    asked = parser.parse_args(arguments)
    smallest: bool = asked.smallest
    rounds, bids, logged = (5, 20, 10_000) if asked.quick else (20, 80, 100_000)
    nodes = 200
    if smallest:
        rounds, bids, logged, nodes = 1, 1, 100, 4
    else:
        # Compiles everything, which takes minutes.
        bench_cold()
    bench_search(rounds, smallest=smallest)
    bench_highs(smallest=smallest)
    bench_day(bids=bids, nodes=nodes)
    bench_replay(bids=bids, nodes=nodes)
    bench_restart(logged)


if __name__ == "__main__":
    main()
