"""Replay of a log: every decision, price and hash is worked out again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from scheduler.auction.audit.faults import Fault, Faults, KnownFault, WrongPrices
from scheduler.auction.audit.give_backs import GiveBackAudit
from scheduler.auction.audit.solve_again import SolveAudit
from scheduler.auction.engine.decide import DeadlineHint
from scheduler.auction.engine.engine import Engine
from scheduler.auction.log.chain import ChainEntry
from scheduler.auction.log.codec import (
    event_from_json,
    event_to_json,
    outcome_from_json,
    outcome_to_json,
)
from scheduler.auction.log.limits import MOST_MONEY
from scheduler.auction.log.outcomes import Outcome
from scheduler.auction.log.rules import ZoneRules
from scheduler.public_log.entries import PRIVATE_PARTS, find_break, hash_entry, seal_arrival
from scheduler.public_log.witness import LostHeads
from scheduler.types import Decision, Refusal


@dataclass(frozen=True, slots=True)
class Verification:
    """What a replay found."""

    ok: bool
    #: Entries that agree, counted up to the first that does not.
    entries: int
    #: Hash of the last entry that agrees.
    head_hash: str
    #: Position of the first entry that does not agree.
    position: int | None = None
    #: What is wrong with it, in one sentence.
    problem: str | None = None
    #: How far its prices are off, where those are wrong and bids are known (``WrongPrices``).
    off_by: Mapping[str, float] | None = None
    #: Heads of a witness that the log agrees with.
    witnessed: int = 0
    #: Those of entries that were lost, as the log itself says.
    lost_heads: tuple[LostHeads, ...] = ()
    #: Solves and posted rates that were made again and came to what is logged.
    solved_again: int = 0
    #: Those that were not: their bids stand before the snapshot.
    taken_as_logged: int = 0
    #: Beats that were passed over or had no prices, so that those before stood.
    beats_missed: int = 0
    #: Heads of a witness at which a beat had been due for more than a minute.
    beats_late: int = 0
    #: Days whose seeds no witness had a part in.
    unwitnessed: int = 0
    #: Position of the snapshot that the log builds on, whose state is taken as it stands.
    begins_at: int = 0
    #: Entries that are wrong, and that the log itself names so. Whatever else there is agrees.
    known_faults: tuple[KnownFault, ...] = ()


def verify(
    entries: Iterable[ChainEntry],
    snapshot: Mapping[str, Any] | None = None,
    *,
    rules: ZoneRules | None = None,
) -> Verification:
    """Replay entries and compare each with the log.

    Parameters
    ----------
    entries : iterable of ChainEntry
        The log after the snapshot, or from its first entry on.
    snapshot : mapping, optional
        State that the first entry builds on.
    rules : ZoneRules, optional
        The zone's rules; needed, and only used, without a snapshot.

    Raises
    ------
    ValueError
        If neither a snapshot nor rules are given.
    """
    engine = _begin(snapshot, rules)
    begins_at = engine.position
    audit = SolveAudit(begins_at)
    faults = Faults()
    give_backs = GiveBackAudit()
    count = 0
    for entry in entries:
        head = entry.prev_hash if count == 0 else engine.head_hash
        fault = audit.find_problem(engine, entry.event, position=engine.position)
        problem = _compare(engine, entry) or give_backs.find_problem(entry.event, entry.outcome)
        if problem is not None:
            found = Fault(entry.position, problem, count, head)
            return _build_failure(faults.find_unnamed() or found, begins_at)
        if fault is not None:
            faults.note(Fault(entry.position, fault.rule, count, head, fault.off_by))
        faults.read(entry.event, position=entry.position)
        audit.note_outcome(entry.outcome)
        count += 1
    if (unnamed := faults.find_unnamed()) is not None:
        return _build_failure(unnamed, begins_at)
    return Verification(
        ok=True,
        entries=count,
        head_hash=engine.head_hash,
        solved_again=audit.solved_again,
        taken_as_logged=audit.taken_as_logged,
        beats_missed=audit.beats_missed,
        unwitnessed=audit.unwitnessed,
        begins_at=begins_at,
        known_faults=faults.list_known(),
    )


def _build_failure(fault: Fault, begins_at: int) -> Verification:
    return Verification(
        ok=False,
        entries=fault.entries,
        head_hash=fault.head_hash,
        position=fault.position,
        problem=fault.problem,
        off_by=fault.off_by,
        begins_at=begins_at,
    )


@dataclass(frozen=True, slots=True)
class _PublicChecks:
    """What a replay of a published log goes by, beside the engine."""

    solves: SolveAudit
    faults: Faults
    give_backs: GiveBackAudit


def verify_public(
    entries: Iterable[Mapping[str, Any]],
    snapshot: Mapping[str, Any] | None = None,
    *,
    rules: ZoneRules | None = None,
) -> Verification:
    """Replay a log in which bids are left out (``log.hide_bid``).

    The chain, and with it the commitment to every bid, is checked whole. So is every schedule,
    payment and solved price: they do not depend on the bid, but on whether it took its price. That
    a bid was above its price can be checked only where it is shown.

    Parameters
    ----------
    entries : iterable of mapping
        Entries as JSON values.
    snapshot, rules
        As for ``verify``.
    """
    engine = _begin(snapshot, rules)
    begins_at = position = engine.position
    head = engine.head_hash
    audit = SolveAudit(begins_at)
    checks = _PublicChecks(audit, Faults(), GiveBackAudit())
    faults = checks.faults
    count = 0
    for data in entries:
        at = partial(Fault, int(data["position"]), entries=count, head_hash=head)
        problem, fault = _compare_public(engine, data, checks, position=position, head=head)
        if problem is not None:
            return _build_failure(faults.find_unnamed() or at(problem), begins_at)
        if fault is not None:
            faults.note(at(fault.rule, off_by=fault.off_by))
        position, head, count = position + 1, str(data["hash"]), count + 1
    if (unnamed := faults.find_unnamed()) is not None:
        return _build_failure(unnamed, begins_at)
    return Verification(
        ok=True,
        entries=count,
        head_hash=head,
        solved_again=audit.solved_again,
        taken_as_logged=audit.taken_as_logged,
        beats_missed=audit.beats_missed,
        unwitnessed=audit.unwitnessed,
        begins_at=begins_at,
        known_faults=faults.list_known(),
    )


#: What an event raises that cannot be, or whose values somebody made up.
_CANNOT_BE = (ArithmeticError, LookupError, TypeError, ValueError)
#: What stands for the parts of an outcome that are not shown where its bid is left out.
_NOT_SHOWN: dict[str, Any] = {
    "surplus": None,
    "raised": [],
    "winning_deadline_slot": None,
    "winning_deadline_price": None,
}


def _compare_public(
    engine: Engine,
    data: Mapping[str, Any],
    checks: _PublicChecks,
    *,
    position: int,
    head: str,
) -> tuple[str | None, WrongPrices | None]:
    """Apply one entry's event; say what differs from the log, and what it was made of wrongly."""
    problem = find_break(data, position=position, head=head)
    if problem is not None:
        return problem, None
    hidden = _list_hidden_tasks(data["event"])
    event_data, outcome_data = dict(data["event"]), dict(data["outcome"])
    if hidden:
        # Any bid on the right side of the price leads to the same schedule.
        lost = outcome_data.get("refusal") == Refusal.PRICE.value
        event_data = _fill_bids(event_data, -MOST_MONEY if lost else MOST_MONEY)
        outcome_data = {**_NOT_SHOWN, **outcome_data}
    event, logged = event_from_json(event_data), outcome_from_json(outcome_data)
    shown = event_to_json(event)
    for found, given in zip(_list_tasks(shown), hidden, strict=False):
        found.pop("bid")
        found["bid_commitment"] = str(given["bid_commitment"])
    expected = outcome_to_json(logged)
    if hidden:
        public_outcome = {
            name: value for name, value in expected.items() if name not in PRIVATE_PARTS
        }
        public_outcome["private_commitment"] = str(data["outcome"]["private_commitment"])
    else:
        public_outcome = expected
    hash_ = hash_entry(position=position + 1, event=shown, outcome=public_outcome, prev_hash=head)
    if hash_ != data["hash"]:
        return "the hash is not that of the entry", None
    fault = checks.solves.find_problem(engine, event, position=position)
    checks.faults.read(event, position=position + 1)
    sealed = None
    if hidden:
        arrivals = shown.get("arrivals", [shown])
        sealed = [seal_arrival(arrival) for arrival in arrivals]
    try:
        outcome = engine.follow(event, entry_hash=str(data["hash"]), sealed=sealed)
    except _CANNOT_BE as error:
        return f"the entry cannot have happened: {error}", None
    left_out = PRIVATE_PARTS if hidden else ()
    checks.solves.note_outcome(outcome)
    found = outcome_to_json(outcome)
    # Also what the log alone names: a refund, say, where none is due.
    names = sorted((found.keys() | expected.keys()) - set(left_out))
    fields = [name for name in names if found.get(name) != expected.get(name)]
    differs = f"the replay differs from the log in {', '.join(fields)}" if fields else None
    return differs or checks.give_backs.find_problem(event, logged), fault


def _list_tasks(event: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Give the tasks that an entry's event has bids of."""
    if "arrivals" in event:
        return [arrival["task"] for arrival in event["arrivals"]]
    return [event["task"]] if "task" in event else []


def _list_hidden_tasks(event: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Give them where their bids are left out, of all or of none."""
    tasks = _list_tasks(event)
    return tasks if tasks and all("bid" not in task for task in tasks) else []


def _fill_bids(event: dict[str, Any], bid: float) -> dict[str, Any]:
    """Give an event with a bid in place of those that were left out."""
    if "arrivals" in event:
        filled = [_fill_bids(arrival, bid) for arrival in event["arrivals"]]
        return {**event, "arrivals": filled, "salt": ""}
    return {**event, "task": {**event["task"], "bid": bid}, "salt": ""}


def _begin(snapshot: Mapping[str, Any] | None, rules: ZoneRules | None) -> Engine:
    if snapshot is not None:
        return Engine.restore(snapshot)
    if rules is not None:
        return Engine(rules)
    raise ValueError("give the snapshot the log builds on, or the zone's rules")


def _find_hint(outcome: Outcome) -> DeadlineHint | None:
    if isinstance(outcome, Decision) and not outcome.admitted:
        return DeadlineHint(outcome.winning_deadline_slot)
    return None


def _compare(engine: Engine, entry: ChainEntry) -> str | None:
    """Apply one entry's event; say what differs from the log, if anything."""
    if entry.position != engine.position + 1:
        return f"entry {engine.position + 1} is missing: the log goes on at {entry.position}"
    if entry.prev_hash != engine.head_hash:
        return "the entry does not build on the one before it"
    try:
        again = engine.apply(entry.event, hint=_find_hint(entry.outcome))
    except _CANNOT_BE as error:
        return f"the entry cannot have happened: {error}"
    if again.outcome != entry.outcome:
        logged, found = outcome_to_json(entry.outcome), outcome_to_json(again.outcome)
        fields = [name for name in found if logged.get(name) != found[name]]
        return f"the replay differs from the log in {', '.join(fields) or 'type'}"
    if again.hash != entry.hash:
        return "the hash is not that of the entry"
    return None
