"""Logs of small days, written as the market writes them: receipts, decisions and solves."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.auction import ChainEntry, Engine, ZoneRules
from scheduler.auction.log import events
from scheduler.auction.log.chain import seal
from scheduler.auction.prices import Settings
from scheduler.auction.prices.worths import show_outcome
from scheduler.experiments.auction.beats import SimulatedBeats, list_beats, make_day_rules
from scheduler.experiments.auction.scenario import Scenario
from scheduler.public_log.entries import digest
from scheduler.types import Beat, Decision, Task


def make_log_rules(scenario: Scenario, settings: Settings) -> ZoneRules:
    """Give the rules of a zone that sells as far ahead as its day is long."""
    rules = ZoneRules(base_memory=scenario.base_memory_gb)
    return make_day_rules(rules, slots=scenario.slots, past_days=0, seed=0, settings=settings)


def write_log(
    scenario: Scenario, day: Sequence[Task], *, settings: Settings, salt: str
) -> list[ChainEntry]:
    """Run a first day and keep its log.

    Parameters
    ----------
    scenario : Scenario
    day : sequence of Task
        In order of arrival; each bid is decided in the slot before.
    settings : Settings
        Of the solves.
    salt : str
        What the secret texts of commitments are made from.
    """
    engine = Engine(make_log_rules(scenario, settings))
    log = [engine.apply(events.NodeJoined(node)) for node in scenario.fleet()]
    seen: list[Task] = []
    won: set[str] = set()
    beats = SimulatedBeats(engine, lambda event: log.append(engine.apply(event)), seen, won)
    # The market opened a beat before the first bid.
    beats.reach(Beat(-2, engine.rules.beats_per_slot - 1))
    for beat, tasks in list_beats(day, engine.rules):
        beats.reach(beat)
        for task in tasks:
            bid = events.BidArrived(task, beat.slot, digest([salt, task.id]))
            log.append(engine.apply(events.BidsReceived(((task.id, seal(bid)),))))
            decided = engine.apply(bid)
            log.append(decided)
            assert isinstance(decided.outcome, Decision)
            seen.append(show_outcome(task, decided.outcome))
            if decided.outcome.admitted:
                won.add(task.id)
    return log
