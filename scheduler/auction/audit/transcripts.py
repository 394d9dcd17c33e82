"""Transcripts: a zone's log as one file that anybody can replay.

One JSON value per line. The first line is a header with the zone's ``rules`` or
the ``snapshot`` that the log builds on; every other line is an entry. Where
``bids_left_out`` is true in the header, entries may show a commitment in place
of a bid.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from scheduler.auction.audit.verify import Verification, verify, verify_public
from scheduler.auction.engine.price_policies import SELLING_POLICIES, Policies
from scheduler.auction.log.chain import ChainEntry, entry_from_json, entry_to_json, hide_bid
from scheduler.auction.log.rules import ZoneRules, rules_from_json, rules_to_json


def transcript_lines(
    entries: Iterable[ChainEntry],
    *,
    rules: ZoneRules | None = None,
    snapshot: Mapping[str, Any] | None = None,
    shows: Callable[[ChainEntry], bool] | None = None,
) -> Iterator[str]:
    """Write a transcript, line by line, from a zone's beginning or a snapshot.

    Parameters
    ----------
    entries : iterable of ChainEntry
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
    start = {"snapshot": snapshot} if rules is None else {"rules": rules_to_json(rules)}
    yield json.dumps({**start, "bids_left_out": shows is not None})
    for entry in entries:
        data = entry_to_json(entry)
        yield json.dumps(data if shows is None or shows(entry) else hide_bid(data))


def verify_transcript(
    lines: Iterable[str], *, policies: Policies = SELLING_POLICIES
) -> Verification:
    """Replay a transcript; ``policies`` are those that its log may name.

    Raises
    ------
    ValueError
        If the lines are not a transcript; the message says what is wrong, and where that
        can be told in which line.
    """
    numbered = enumerate((line for line in lines if line.strip()), start=1)
    _, first = next(numbered, (0, ""))
    header = _parse(first, 1)
    snapshot = header.get("snapshot")
    try:
        rules = None if header.get("rules") is None else rules_from_json(header["rules"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"line 1 has no rules that can be read: {error!r}") from error
    if snapshot is None and rules is None:
        raise ValueError("line 1 names neither rules nor a snapshot: this is not a transcript")
    if header.get("bids_left_out"):
        return _naming_lines(
            lambda: verify_public(
                (_parse(line, number) for number, line in numbered),
                snapshot,
                rules=rules,
                policies=policies,
            )
        )
    return _naming_lines(
        lambda: verify(
            (_entry(line, number) for number, line in numbered),
            snapshot,
            rules=rules,
            policies=policies,
        )
    )


def _naming_lines(check: Callable[[], Verification]) -> Verification:
    try:
        return check()
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"a line is not of a transcript: {error!r}") from error


def _parse(line: str, number: int) -> dict[str, Any]:
    try:
        value: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {number} is not JSON: {error.msg}") from error
    if not isinstance(value, dict):
        raise ValueError(f"line {number} is not a JSON object")
    return cast("dict[str, Any]", value)


def _entry(line: str, number: int) -> ChainEntry:
    try:
        return entry_from_json(_parse(line, number))
    except (KeyError, TypeError) as error:
        raise ValueError(f"line {number} is not a log entry: {error!r}") from error
