"""Transcripts: a zone's log as one file that anybody can replay.

One JSON value per line. The first line is a header with the zone's ``rules`` or
the ``snapshot`` that the log builds on; every other line is an entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from scheduler.auction.log import Entry, entry_from_json, entry_to_json
from scheduler.auction.rules import ZoneRules, rules_from_json, rules_to_json
from scheduler.auction.verify import Verification, verify


def transcript_lines(
    entries: Iterable[Entry],
    *,
    rules: ZoneRules | None = None,
    snapshot: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """Write a transcript, line by line, from a zone's beginning or a snapshot.

    Raises
    ------
    ValueError
        If not exactly one of ``rules`` and ``snapshot`` is given.
    """
    if (rules is None) == (snapshot is None):
        raise ValueError("give either the zone's rules or a snapshot")
    if rules is not None:
        yield json.dumps({"rules": rules_to_json(rules)})
    else:
        yield json.dumps({"snapshot": snapshot})
    for entry in entries:
        yield json.dumps(entry_to_json(entry))


def verify_transcript(lines: Iterable[str]) -> Verification:
    """Replay a transcript.

    Raises
    ------
    ValueError
        If the lines are not a transcript; the message names the line.
    """
    numbered = enumerate((line for line in lines if line.strip()), start=1)
    _, first = next(numbered, (0, ""))
    header = _parse(first, 1)
    entries = (_entry(line, number) for number, line in numbered)
    if header.get("snapshot") is not None:
        return verify(entries, header["snapshot"])
    if header.get("rules") is not None:
        return verify(entries, rules=rules_from_json(header["rules"]))
    raise ValueError("line 1 names neither rules nor a snapshot: this is not a transcript")


def _parse(line: str, number: int) -> dict[str, Any]:
    try:
        value: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {number} is not JSON: {error.msg}") from error
    if not isinstance(value, dict):
        raise ValueError(f"line {number} is not a JSON object")
    return cast("dict[str, Any]", value)


def _entry(line: str, number: int) -> Entry:
    try:
        return entry_from_json(_parse(line, number))
    except (KeyError, TypeError) as error:
        raise ValueError(f"line {number} is not a log entry: {error!r}") from error
