"""A zone's log as one file (``public_log.transcript``): written, and replayed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from scheduler.auction.audit.verify import Verification, verify, verify_public
from scheduler.auction.log.chain import ChainEntry, entry_from_json, entry_to_json
from scheduler.auction.log.codec import rules_from_json, rules_to_json
from scheduler.auction.log.rules import ZoneRules
from scheduler.public_log.entries import digest, hide_bid
from scheduler.public_log.heads import SignedHead
from scheduler.public_log.transcript import UNREADABLE, TranscriptReader, refuse_entry


def write_transcript_lines(
    entries: Iterable[ChainEntry],
    *,
    zone: str | None = None,
    rules: ZoneRules | None = None,
    snapshot: Mapping[str, Any] | None = None,
    shows: Callable[[ChainEntry], bool] | None = None,
) -> Iterator[str]:
    """Write a transcript, line by line, from a zone's beginning or a snapshot.

    Parameters
    ----------
    entries : iterable of ChainEntry
    zone : str, optional
        Name under which the market signs the log's heads.
    rules : ZoneRules, optional
    snapshot : mapping, optional
    shows : callable, optional
        Tells of which entries the bid is published; all by default.

    Raises
    ------
    ValueError
        If not exactly one of ``rules`` and ``snapshot`` is given.
    """
    if (rules is None) == (snapshot is None):
        raise ValueError("give either the zone's rules or a snapshot")
    named = {} if zone is None else {"zone": zone}
    start = {"snapshot": snapshot} if rules is None else {"rules": rules_to_json(rules)}
    yield json.dumps({**named, **start, "bids_left_out": shows is not None})
    for entry in entries:
        data = entry_to_json(entry)
        yield json.dumps(data if shows is None or shows(entry) else hide_bid(data))


def verify_transcript(
    lines: Iterable[str],
    *,
    witness: Sequence[SignedHead] | None = None,
    now: datetime | None = None,
) -> Verification:
    """Replay a transcript, and hold it against the heads that a witness has.

    Parameters
    ----------
    lines : iterable of str
    witness : sequence of SignedHead, optional
        As ``read_witness`` gives them. Heads of other zones are passed over.
    now : datetime, optional
        The reader's clock: a restore of a later moment excuses no head.

    Raises
    ------
    ValueError
        If the lines are not a transcript; the message says what is wrong, and where that
        can be reported with its line.
    """
    reader = TranscriptReader(lines, witness=witness or (), now=now)
    rules = None if reader.rules is None else _read_rules(reader.rules)
    if reader.header.get("bids_left_out"):
        found = _naming_lines(
            lambda: verify_public((data for _, data in reader), reader.snapshot, rules=rules)
        )
    else:
        found = _naming_lines(
            lambda: verify(
                (_entry(data, number) for number, data in reader), reader.snapshot, rules=rules
            )
        )
    if found.ok and rules is not None and digest(reader.rules) != digest(rules_to_json(rules)):
        problem = "line 1 says something of the rules that no hash covers"
        found = replace(found, ok=False, position=0, problem=problem)
    if found.ok and reader.loose is not None:
        position, problem = reader.loose
        found = replace(found, ok=False, position=position, problem=problem)
    return found if witness is None else _with_witness(found, reader)


def _read_rules(data: Mapping[str, Any]) -> ZoneRules:
    try:
        return rules_from_json(data)
    except (KeyError, TypeError, ArithmeticError) as error:
        raise ValueError(f"line 1 has no rules that can be read: {error!r}") from error


def _with_witness(found: Verification, reader: TranscriptReader) -> Verification:
    """Add what the witness says to what the replay found; a double history comes first."""
    found = replace(found, witnessed=reader.comparison.agreeing)
    twice = reader.find_double_history()
    if twice is not None:
        return replace(found, ok=False, problem=twice)
    if not found.ok:
        return found
    contradicted = reader.find_contradiction()
    if contradicted is None:
        comparison = reader.comparison
        lost, late = tuple(comparison.list_lost()), comparison.count_late()
        return replace(found, lost_heads=lost, beats_late=late)
    position, problem = contradicted
    return replace(found, ok=False, position=position, problem=problem)


def _naming_lines(check: Callable[[], Verification]) -> Verification:
    try:
        return check()
    except UNREADABLE as error:
        raise ValueError(f"a line is not of a transcript: {error!r}") from error


def _entry(data: Mapping[str, Any], number: int) -> ChainEntry:
    try:
        return entry_from_json(data)
    except (KeyError, TypeError, ArithmeticError) as error:
        raise refuse_entry(number, error) from error
