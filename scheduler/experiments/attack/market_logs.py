"""Logs of small days, written as the market writes them: receipts, decisions and solves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, replace

from scheduler.auction import ChainEntry, Engine, ZoneRules
from scheduler.auction.log import events
from scheduler.auction.log.chain import seal
from scheduler.auction.prices import KnownBids, Settings, solve_prices
from scheduler.auction.prices.solve import choose_seed
from scheduler.experiments.auction.run import SOLVE_EVERY
from scheduler.experiments.auction.scenario import Scenario
from scheduler.public_log.entries import digest
from scheduler.types import Decision, Task


def make_log_rules(scenario: Scenario, settings: Settings) -> ZoneRules:
    """Give the rules of a zone that sells as far ahead as its day is long."""
    return ZoneRules(
        base_memory=scenario.base_memory_gb,
        # A bid that is decided in the day's last slot begins in the next.
        horizon_slots=scenario.slots + 1,
        settings=asdict(settings),
    )


def write_log(
    scenario: Scenario, day: Sequence[Task], *, settings: Settings, salt: str
) -> list[ChainEntry]:
    """Run a first day and keep its log.

    Parameters
    ----------
    scenario : Scenario
    day : sequence of Task
        In order of arrival; each bid is decided in its slot and begins in the next.
    settings : Settings
        Of the solves.
    salt : str
        What the secret texts of commitments are made from.
    """
    engine = Engine(make_log_rules(scenario, settings))
    log = [engine.apply(events.NodeJoined(node)) for node in scenario.fleet()]
    seen: list[Task] = []
    won: set[str] = set()
    waiting = list(day)
    for slot in range(scenario.slots):
        if slot > 0:
            log.append(engine.apply(events.SlotAdvanced(slot)))
        if slot % SOLVE_EVERY == 0:
            log.append(engine.apply(_solve(engine, seen, won, slot + 1, settings, salt)))
        while waiting and waiting[0].arrival_slot <= slot:
            task = waiting.pop(0)
            task = replace(task, arrival_slot=slot + 1, deadline_slot=task.deadline_slot + 1)
            bid = events.BidArrived(task, slot, digest([salt, task.id]))
            log.append(engine.apply(events.BidsReceived(((task.id, seal(bid)),))))
            decided = engine.apply(bid)
            log.append(decided)
            if isinstance(decided.outcome, Decision) and decided.outcome.admitted:
                won.add(task.id)
            seen.append(task)
    return log


def _solve(
    engine: Engine,
    seen: Sequence[Task],
    won: Collection[str],
    slot: int,
    settings: Settings,
    salt: str,
) -> events.PricesSolved:
    return solve_prices(
        engine,
        KnownBids(
            slot=slot,
            last_slot=engine.horizon.last_slot,
            day_start=1,
            today=seen,
            past_days=[],
            given={
                "past_starts": [],
                "first_position": 1,
                "last_position": engine.position,
                "every": 1,
            },
            won=won,
        ),
        seed=choose_seed(engine, slot=slot),
        settings=settings,
        salt=digest([salt, slot]),
    )
