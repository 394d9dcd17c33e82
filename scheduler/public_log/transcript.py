"""Transcripts: a zone's log as one file that anybody can check.

One JSON value per line. The first line is a header with the zone's name, and its
``rules`` or the ``snapshot`` that the log builds on; every other line is an entry.
Where ``bids_left_out`` is true in the header, entries may show a commitment in
place of a bid.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from .canonical_json import parse_json
from .days import DayReader
from .entries import LOG_VERSION, digest, find_break, is_as_hashed
from .heads import SignedHead
from .turns import ARRIVED, BUNDLED, check_turn, read_turn, settle_receipts
from .witness import HeadComparison, LostHeads

#: What reading a line can bring about that is not of a transcript.
UNREADABLE = (KeyError, TypeError, AttributeError, IndexError, ArithmeticError)


class TranscriptReader:
    """A transcript's header, and its entries as JSON values, noted against what witnesses saw.

    Parameters
    ----------
    lines : iterable of str
    witness : sequence of SignedHead
        As ``read_witness`` gives them. Heads of other zones are passed over.
    now : datetime, optional
        The reader's clock: a restore of a later moment excuses no head.

    Raises
    ------
    ValueError
        If the first line is not a transcript's.
    """

    def __init__(
        self, lines: Iterable[str], *, witness: Sequence[SignedHead], now: datetime | None
    ) -> None:
        numbered = enumerate((line for line in lines if line.strip()), start=1)
        _, first = next(numbered, (0, ""))
        self._numbered = numbered
        self.header = _parse(first, 1)
        self.rules: Mapping[str, Any] | None = self.header.get("rules")
        self.snapshot: Mapping[str, Any] | None = self.header.get("snapshot")
        if self.rules is None and self.snapshot is None:
            raise ValueError("line 1 names neither rules nor a snapshot: this is not a transcript")
        try:
            self.begins_at, self.begin_hash = self._find_begin()
            rules = self.snapshot["rules"] if self.snapshot is not None else self.rules
        except UNREADABLE as error:
            what = "rules" if self.snapshot is None else "snapshot"
            raise ValueError(f"line 1 has no {what} that can be read: {error!r}") from error
        zone = self.header.get("zone")
        self.comparison = HeadComparison(_list_heads_of_zone(zone, witness), now, rules or {})
        self.comparison.note(position=self.begins_at, hash_=self.begin_hash)
        #: The first entry that says more than is hashed, and a sentence on it.
        self.loose: tuple[int, str] | None = None

    def _find_begin(self) -> tuple[int, str]:
        if self.snapshot is not None:
            return int(self.snapshot["position"]), str(self.snapshot["head_hash"])
        assert self.rules is not None
        version = self.rules.get("version")
        if version != LOG_VERSION:
            raise ValueError(f"log version {version!r}: this program reads {LOG_VERSION}")
        return 0, digest(self.rules)

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Give number and value of each line after the first.

        Raises
        ------
        ValueError
            If a line is not an entry.
        """
        for number, line in self._numbered:
            data = _parse(line, number)
            try:
                position = int(data["position"])
                self.comparison.note(position=position, hash_=str(data["hash"]))
                self.comparison.note_event(position=position, event=data["event"])
                if self.loose is None and not is_as_hashed(data):
                    reason = f"line {number} says something that its hash does not cover"
                    self.loose = (position, reason)
            except UNREADABLE as error:
                raise refuse_entry(number, error) from error
            yield number, data

    def find_double_history(self) -> str | None:
        """Say where the market signed two histories, if it did."""
        twice = self.comparison.find_equivocation()
        return None if twice is None else twice + self._explain_begin()

    def find_contradiction(self) -> tuple[int | None, str] | None:
        """Say what witnesses have that the log contradicts, and at which position.

        Without a head of the zone a witness says nothing, which is a contradiction too.
        """
        if not self.comparison.heads:
            return None, "the witness has no head of this log's zone"
        found = self.comparison.find_problem()
        return None if found is None else (found[0], found[1] + self._explain_begin())

    def _explain_begin(self) -> str:
        """A restore that is said before the transcript begins would explain some heads."""
        return f". It begins at {self.begins_at}: take the whole log" if self.begins_at else ""


@dataclass(frozen=True, slots=True)
class ChainCheck:
    """What a log shows of itself without deciding anything again."""

    ok: bool
    #: Entries that agree, counted up to the first that does not.
    entries: int
    #: Hash of the last entry that agrees.
    head_hash: str
    #: Position of the first entry that does not agree.
    position: int | None = None
    #: What is wrong, in one sentence.
    problem: str | None = None
    #: Bids that were decided, each as it was received and in its turn.
    decided: int = 0
    #: Heads of a witness that the log agrees with.
    witnessed: int = 0
    #: Heads of a witness at which a beat had been due for more than a minute.
    beats_late: int = 0
    #: Those of entries that were lost, as the log itself says.
    lost_heads: tuple[LostHeads, ...] = ()
    #: Sentences on entries that the log itself names as wrong.
    errata: tuple[str, ...] = ()
    #: Position of the snapshot that the log builds on, which is taken as it stands.
    begins_at: int = 0
    #: Always false: ``python -m scheduler verify`` makes decisions and prices again.
    decided_again: bool = False


def check_transcript(
    lines: Iterable[str],
    *,
    witness: Sequence[SignedHead] | None = None,
    now: datetime | None = None,
    note: Callable[[Mapping[str, Any]], None] | None = None,
) -> ChainCheck:
    """Check that a log is one chain, that bids were decided in turn, and that witnesses saw it.

    Prices are not worked out again: that takes the auction itself.

    Parameters
    ----------
    lines, witness, now
        As for ``TranscriptReader``.
    note : callable, optional
        Is given each entry that follows from those before it, as JSON values.

    Raises
    ------
    ValueError
        If the lines are not a transcript.
    """
    reader = TranscriptReader(lines, witness=witness or (), now=now)
    try:
        checker = _ChainChecker(reader)
    except UNREADABLE as error:
        raise ValueError(f"line 1 has no snapshot that can be read: {error!r}") from error
    for number, data in reader:
        try:
            problem = checker.take(data)
            if problem is None and note is not None:
                note(data)
        except UNREADABLE as error:
            raise refuse_entry(number, error) from error
        if problem is not None:
            return checker.build(int(data["position"]), problem)
    other = checker.find_other_seed()
    if witness is None or other is not None:
        return checker.build(*(other or (None, None)))
    twice = reader.find_double_history()
    found = reader.find_contradiction() if twice is None else (None, twice)
    return checker.build(*(found or (None, None)), is_witnessed=True)


class _ChainChecker:
    """A log as far as it was read: its head, and the bids that are received and not decided."""

    def __init__(self, reader: TranscriptReader) -> None:
        self._reader = reader
        self._position, self._head = reader.begins_at, reader.begin_hash
        snapshot = reader.snapshot or {}
        self._receipts = {str(bid): str(seal) for bid, seal in snapshot.get("receipts", ())}
        self._days = DayReader(reader.rules, reader.snapshot)
        #: Why entries' seeds are not those that follow, by position, where no later one says so.
        self._other_seeds: dict[int, str] = {}
        self._bundle: tuple[str, list[str]] | None = None
        if "bundle" in snapshot:
            bundle_id, task_ids, *_ = snapshot["bundle"]
            self._bundle = str(bundle_id), [str(each) for each in task_ids]
        self._decided = 0
        self._errata: list[str] = []

    def take(self, data: Mapping[str, Any]) -> str | None:
        """Go on by an entry; say what is wrong with it, if anything."""
        problem = find_break(data, position=self._position, head=self._head)
        if problem is not None:
            return problem
        if self._reader.loose is not None:
            return self._reader.loose[1]
        event = data["event"]
        turn = read_turn(event)
        try:
            check_turn(self._receipts, self._bundle, turn)
            self._days.take(event, entry_hash=str(data["hash"]))
        except ValueError as error:
            return f"the entry cannot have happened: {error}"
        settle_receipts(self._receipts, turn)
        if turn.kind == BUNDLED:
            self._bundle = turn.bundle, [task_id for task_id, _ in turn.decided]
        elif turn.kind == ARRIVED:
            self._decided += 1
            if self._bundle is not None:
                left = self._bundle[1][1:]
                self._bundle = (self._bundle[0], left) if left else None
        elif turn.kind == "PricesSolved" and (other := self._days.find_seed_problem(event)):
            self._other_seeds[int(data["position"])] = other
        elif turn.kind == "ErratumNoted":
            self._other_seeds.pop(int(event["entry"]), None)
            self._errata.append(
                f"entry {event['entry']} is wrong, as entry {data['position']} says: "
                f"{event['problem']} Rule: {event['rule']}."
            )
        self._position, self._head = int(data["position"]), str(data["hash"])
        return None

    def find_other_seed(self) -> tuple[int, str] | None:
        """Give the first entry whose seed does not follow, and why, unless the log names it."""
        return next(iter(self._other_seeds.items()), None)

    def build(
        self, position: int | None, problem: str | None, *, is_witnessed: bool = False
    ) -> ChainCheck:
        lost = self._reader.comparison.list_lost() if is_witnessed and problem is None else ()
        return ChainCheck(
            ok=problem is None,
            entries=self._position - self._reader.begins_at,
            head_hash=self._head,
            position=position,
            problem=problem,
            decided=self._decided,
            witnessed=self._reader.comparison.agreeing,
            beats_late=self._reader.comparison.count_late(),
            lost_heads=tuple(lost),
            errata=tuple(self._errata),
            begins_at=self._reader.begins_at,
        )


def _list_heads_of_zone(zone: str | None, witness: Sequence[SignedHead]) -> list[SignedHead]:
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


def refuse_entry(number: int, error: Exception) -> ValueError:
    """Give the error of a line that is not an entry."""
    return ValueError(f"line {number} is not a log entry: {error!r}")
