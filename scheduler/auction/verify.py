"""Replay of a log: every decision, price and hash is worked out again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scheduler.auction.engine import Engine
from scheduler.auction.log import Entry
from scheduler.auction.outcomes import outcome_to_json
from scheduler.auction.rules import ZoneRules


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


def verify(
    entries: Iterable[Entry],
    snapshot: Mapping[str, Any] | None = None,
    *,
    rules: ZoneRules | None = None,
) -> Verification:
    """Replay entries and compare each with the log.

    Parameters
    ----------
    entries : iterable of Entry
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
    if snapshot is not None:
        engine = Engine.restore(dict(snapshot))
    elif rules is not None:
        engine = Engine(rules)
    else:
        raise ValueError("give the snapshot the log builds on, or the zone's rules")
    count = 0
    for entry in entries:
        problem = _compare(engine, entry)
        if problem is not None:
            return Verification(
                ok=False,
                entries=count,
                head_hash=entry.prev_hash if count == 0 else engine.head_hash,
                position=entry.position,
                problem=problem,
            )
        count += 1
    return Verification(ok=True, entries=count, head_hash=engine.head_hash)


def _compare(engine: Engine, entry: Entry) -> str | None:
    """Apply one entry's event; say what differs from the log, if anything."""
    if entry.position != engine.position + 1:
        return f"entry {engine.position + 1} is missing: the log goes on at {entry.position}"
    if entry.prev_hash != engine.head_hash:
        return "the entry does not build on the one before it"
    again = engine.apply(entry.event)
    if again.outcome != entry.outcome:
        logged, found = outcome_to_json(entry.outcome), outcome_to_json(again.outcome)
        fields = [name for name in found if logged.get(name) != found[name]]
        return f"the replay differs from the log in {', '.join(fields) or 'type'}"
    if again.hash != entry.hash:
        return "the hash is not that of the entry"
    return None
