"""Transcripts: a zone's log as one file that anybody can replay.

One JSON value per line. The first line is a header with the zone's name, and its
``rules`` or the ``snapshot`` that the log builds on; every other line is an entry.
Where ``bids_left_out`` is true in the header, entries may show a commitment in
place of a bid.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from scheduler.auction.audit.verify import Verification, verify, verify_public
from scheduler.auction.audit.witness import HeadComparison
from scheduler.auction.log.canonical_json import parse_json
from scheduler.auction.log.chain import (
    ChainEntry,
    digest,
    entry_from_json,
    entry_to_json,
    hash_entry,
    hide_bid,
)
from scheduler.auction.log.codec import rules_from_json, rules_to_json
from scheduler.auction.log.heads import SignedHead
from scheduler.auction.log.rules import ZoneRules

#: Of an entry.
_FIELDS = {"position", "event", "outcome", "prev_hash", "hash"}


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
    numbered = enumerate((line for line in lines if line.strip()), start=1)
    _, first = next(numbered, (0, ""))
    header = _parse(first, 1)
    snapshot = header.get("snapshot")
    try:
        rules = None if header.get("rules") is None else rules_from_json(header["rules"])
    except (KeyError, TypeError, ArithmeticError) as error:
        raise ValueError(f"line 1 has no rules that can be read: {error!r}") from error
    if snapshot is None and rules is None:
        raise ValueError("line 1 names neither rules nor a snapshot: this is not a transcript")
    heads = _heads_of_zone(header.get("zone"), witness or ())
    comparison = HeadComparison(heads, now)
    if snapshot is not None:
        try:
            position, head_hash = int(snapshot["position"]), str(snapshot["head_hash"])
        except (KeyError, TypeError, ArithmeticError) as error:
            raise ValueError(f"line 1 has no snapshot that can be read: {error!r}") from error
        comparison.note(position=position, hash_=head_hash)
    elif rules is not None:
        comparison.note(position=0, hash_=digest(rules_to_json(rules)))
    loose: list[tuple[int, str]] = []
    if rules is not None and digest(header["rules"]) != digest(rules_to_json(rules)):
        loose.append((0, "line 1 says something of the rules that no hash covers"))
    parsed = _noted(
        ((number, _parse(line, number)) for number, line in numbered), comparison, loose
    )
    if header.get("bids_left_out"):
        found = _naming_lines(
            lambda: verify_public((data for _, data in parsed), snapshot, rules=rules)
        )
    else:
        found = _naming_lines(
            lambda: verify(
                (_entry(data, number) for number, data in parsed),
                snapshot,
                rules=rules,
            )
        )
    if found.ok and loose:
        position, problem = loose[0]
        found = replace(found, ok=False, position=position, problem=problem)
    return found if witness is None else _with_witness(found, comparison)


def _heads_of_zone(zone: str | None, witness: Sequence[SignedHead]) -> list[SignedHead]:
    """Those heads of a witness that are of the transcript's zone.

    Raises
    ------
    ValueError
        If the transcript does not say which zone's it is, and the witness has several.
    """
    if zone is not None:
        return [signed for signed in witness if signed.head.zone == zone]
    zones = sorted({signed.head.zone for signed in witness})
    if len(zones) > 1:
        raise ValueError(
            f"line 1 names no zone, and the witness has heads of {', '.join(zones)}: "
            "give a witness of one zone"
        )
    return list(witness)


def _noted(
    numbered: Iterable[tuple[int, dict[str, Any]]],
    comparison: HeadComparison,
    loose: list[tuple[int, str]],
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Hand on lines, having noted their hashes, and the first that says more than is hashed."""
    for number, data in numbered:
        try:
            comparison.note(position=int(data["position"]), hash_=str(data["hash"]))
            comparison.note_event(position=int(data["position"]), event=data["event"])
            if not loose and not _is_as_hashed(data):
                reason = f"line {number} says something that its hash does not cover"
                loose.append((int(data["position"]), reason))
        except (KeyError, TypeError, ArithmeticError) as error:
            raise _not_an_entry(number, error) from error
        yield number, data


def _is_as_hashed(data: Mapping[str, Any]) -> bool:
    """Whether an entry's own text, and not only what is read of it, has the hash it names.

    Reading passes over fields that it does not know, and takes ``"5"`` for 5.
    """
    position = data["position"]
    if set(data) != _FIELDS or isinstance(position, bool) or not isinstance(position, int):
        return False
    made = hash_entry(
        position=position,
        event=data["event"],
        outcome=data["outcome"],
        prev_hash=data["prev_hash"],
    )
    return made == data["hash"]


def _with_witness(found: Verification, comparison: HeadComparison) -> Verification:
    """Add what the witness says to what the replay found; a double history comes first."""
    found = replace(found, witnessed=comparison.agreeing)
    # A restore that is said before the transcript begins would explain some heads.
    whole = f". It begins at {found.begins_at}: take the whole log" if found.begins_at else ""
    twice = comparison.find_equivocation()
    if twice is not None:
        return replace(found, ok=False, problem=twice + whole)
    if not found.ok:
        return found
    if not comparison.heads:
        return replace(found, ok=False, problem="the witness has no head of this log's zone")
    contradicted = comparison.find_problem()
    if contradicted is None:
        return replace(found, lost_heads=tuple(comparison.list_lost()))
    position, problem = contradicted
    return replace(found, ok=False, position=position, problem=problem + whole)


def _naming_lines(check: Callable[[], Verification]) -> Verification:
    try:
        return check()
    except (KeyError, TypeError, AttributeError, IndexError, ArithmeticError) as error:
        raise ValueError(f"a line is not of a transcript: {error!r}") from error


def _parse(line: str, number: int) -> dict[str, Any]:
    try:
        value: Any = parse_json(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {number} is not JSON: {error.msg}") from error
    except ValueError as error:
        raise ValueError(f"line {number} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"line {number} is not a JSON object")
    return cast("dict[str, Any]", value)


def _entry(data: Mapping[str, Any], number: int) -> ChainEntry:
    try:
        return entry_from_json(data)
    except (KeyError, TypeError, ArithmeticError) as error:
        raise _not_an_entry(number, error) from error


def _not_an_entry(number: int, error: Exception) -> ValueError:
    return ValueError(f"line {number} is not a log entry: {error!r}")
