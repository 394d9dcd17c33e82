"""Witnessed heads: what finds a log that was cut short or written again.

A replay alone shows only that a log is *a* consistent history: its owner can recompute
the whole chain with other entries, or cut off its end. Heads that were signed and
published while the log grew show which history it was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from .canonical_json import parse_json
from .files import open_lines
from .heads import SignedHead, has_valid_signature, signed_head_from_json
from .turns import RESTORED

#: Seconds from a head's signature to the moment that its backup is of; no lane's turn takes longer.
BACKUP_WITHIN_S = 60.0
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
#: Seconds that clocks of a market may differ by, and that its lane and its signer come by later.
BEAT_WITHIN_S = 60.0
#: Entries that come with a beat at most, itself among them.
_OF_BEAT = 4
#: What a sentence on a market that showed two histories begins with.
TWO_HISTORIES = "the market signed two different heads"


def read_witness(lines: Iterable[str], *, keys: Collection[str] = ()) -> list[SignedHead]:
    """Read a witness file: one signed head, or receipt, per line.

    Parameters
    ----------
    lines : iterable of str
    keys : collection of str, optional
        The market's public keys in hex, as the reader knows them; without them each head is
        held against the key that it names.

    Raises
    ------
    ValueError
        If a line is not a head, not signed by the key that it names, or signed by a key that
        is not among ``keys``. Such a line proves nothing, for or against the market.
    """
    heads: list[SignedHead] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value: Any = parse_json(line)
            if not isinstance(value, dict):
                raise ValueError("it is not a JSON object")
            signed = signed_head_from_json(cast("dict[str, Any]", value))
        except ValueError as error:
            raise ValueError(f"line {number} of the witness is not a head: {error}") from error
        if not has_valid_signature(signed):
            raise ValueError(f"line {number} of the witness is not signed by the key it names")
        if keys and signed.public_key not in keys:
            raise ValueError(
                f"line {number} of the witness is signed by {signed.public_key}, "
                "which is none of the keys given"
            )
        heads.append(signed)
    return heads


def read_witness_files(
    paths: Sequence[str], *, keys: Collection[str] = ()
) -> list[SignedHead] | None:
    """Read the heads of all witness files; ``None`` without a file."""
    if not paths:
        return None
    heads: list[SignedHead] = []
    for path in paths:
        with open_lines(path) as lines:
            heads += read_witness(lines, keys=keys)
    return heads


def describe_equivocation(heads: Iterable[SignedHead]) -> str | None:
    """Say at which position a market signed two different heads of one zone, if it did."""
    first: dict[tuple[str, int], str] = {}
    for signed in heads:
        head = signed.head
        known = first.setdefault((head.zone, head.position), head.hash)
        if known != head.hash:
            return (
                f"{TWO_HISTORIES} of zone {head.zone} at position "
                f"{head.position}: {known} and {head.hash}. It showed two histories"
            )
    return None


@dataclass(frozen=True, slots=True)
class LostHeads:
    """Heads and receipts of entries that the market lost, as its log says (``LogRestored``)."""

    count: int
    #: Of the entry that says so: what came from here on was lost.
    named_at: int
    #: As the entry says it, ISO 8601.
    backed_up_at: str
    restored_at: str

    def __str__(self) -> str:
        return (
            f"{self.count} signed heads or receipts are of entries that the market lost: as entry "
            f"{self.named_at} says, it went on from a backup of {self.backed_up_at} on "
            f"{self.restored_at}."
        )


@dataclass(frozen=True, slots=True)
class Restore:
    """What an entry says of a market that went on from a backup, ISO 8601."""

    backed_up_at: str
    restored_at: str


@dataclass(frozen=True, slots=True)
class DueBeat:
    """A beat of a log whose rules name a clock."""

    position: int
    #: When it was due, and the next one, seconds since 1970 UTC.
    due_s: float
    next_s: float

    def is_early(self, at: datetime) -> bool:
        """Whether it had come by a moment that was long before its time."""
        return self.due_s > at.timestamp() + BEAT_WITHIN_S

    def is_overdue(self, at: datetime, *, position: int) -> bool:
        """Whether the next one was long due when the last entry was one after those of this."""
        return at.timestamp() > self.next_s + BEAT_WITHIN_S and position >= self.position + _OF_BEAT


def read_beat(
    event: Mapping[str, Any], rules: Mapping[str, Any], *, position: int
) -> DueBeat | None:
    """Give the beat that an entry logs; ``None`` for another entry, or where there is no clock."""
    slot_s = float(rules.get("slot_s", 0))
    if event["type"] != "SlotAdvanced" or not slot_s:
        return None
    beat_s = slot_s / int(rules["beats_per_slot"])
    due_s = float(rules.get("epoch_s", 0)) + int(event["slot"]) * slot_s
    due_s += int(event.get("part", 0)) * beat_s
    return DueBeat(position, due_s, due_s + beat_s)


@dataclass(slots=True)
class HeadComparison:
    """The hashes of a log at the positions that witnesses saw, noted as the log is read."""

    #: Of the log's own zone.
    heads: Sequence[SignedHead]
    #: The reader's clock; what a log says of a later moment excuses nothing.
    now: datetime | None = None
    #: The log's; its beats are held against the moments of heads if they name a clock.
    rules: Mapping[str, Any] = field(default_factory=dict[str, Any])
    #: Of the log, by position.
    _found: dict[int, str] = field(default_factory=dict[int, str])
    _wanted: frozenset[int] = field(init=False)
    #: Entries that say that what came from there on was lost, by position.
    _restored: dict[int, Restore] = field(default_factory=dict[int, Restore])
    _beat: DueBeat | None = None
    #: By position of a head.
    _beats: dict[int, DueBeat] = field(default_factory=dict[int, DueBeat])
    #: Positions of promised days, with the zone and the market's key that they name.
    _promised: dict[int, tuple[str, str]] = field(default_factory=dict[int, "tuple[str, str]"])
    _first: int | None = None
    _last: int = 0

    def __post_init__(self) -> None:
        self._wanted = frozenset(signed.head.position for signed in self.heads)

    def note(self, *, position: int, hash_: str) -> None:
        """Note the hash of an entry, or of what the log begins with."""
        if self._first is None:
            self._first = position
        self._last = position
        if position in self._wanted:
            self._found[position] = hash_

    def note_event(self, *, position: int, event: Mapping[str, Any]) -> None:
        """Note an entry that says that later ones were lost, a beat, or a promised day."""
        if event["type"] == RESTORED:
            moments = str(event["backed_up_at"]), str(event["restored_at"])
            self._restored[position] = Restore(*moments)
        elif event["type"] == "DayPromised":
            self._promised[position] = str(event["zone"]), str(event.get("market_key", ""))
        self._beat = read_beat(event, self.rules, position=position) or self._beat
        if position in self._wanted and self._beat is not None:
            self._beats[position] = self._beat

    def list_lost(self) -> list[LostHeads]:
        """Count the heads that were signed of lost entries, by the entry that says so."""
        return [
            LostHeads(len(lost), at, event.backed_up_at, event.restored_at)
            for at, event in self._restored.items()
            if (lost := self._find_lost(at))
        ]

    def list_standing(self) -> list[SignedHead]:
        """Give the heads that the log has to agree with."""
        lost = {signed for at in self._restored for signed in self._find_lost(at)}
        return [signed for signed in self.heads if signed not in lost]

    def find_equivocation(self) -> str | None:
        """Say where the market signed two histories: one loss has one history."""
        groups = (self.list_standing(), *map(self._find_lost, self._restored))
        return next(filter(None, map(describe_equivocation, groups)), None)

    def _find_lost(self, at: int) -> list[SignedHead]:
        """Give the heads of entries that are lost, as the entry at ``at`` says.

        They were signed after the backup, which holds what came before, and not after the market
        went on from it: no later than it says, than the first head that the log has of this entry
        or a later one, and than now.
        """
        event, no_older = self._restored[at], timedelta(seconds=BACKUP_WITHIN_S)
        begins, ends = _read(event.backed_up_at) - no_older, _read(event.restored_at)
        if self.now is not None and ends > self.now:
            return []
        later = [signed for signed in self.heads if signed.head.position >= at]
        ends = min([ends, *(_read(each.signed_at) for each in later if self._agrees(each))])
        return [
            signed
            for signed in later
            if not self._agrees(signed) and begins <= _read(signed.signed_at) <= ends
        ]

    def _agrees(self, signed: SignedHead) -> bool:
        return self._found.get(signed.head.position) == signed.head.hash

    @property
    def agreeing(self) -> int:
        """Heads that the log has as they were signed."""
        return sum(map(self._agrees, self.heads))

    def count_late(self) -> int:
        """Count the heads of entries after a beat's own at which the next one was long due."""
        return sum(
            beat.is_overdue(_read(signed.signed_at), position=signed.head.position)
            for signed, beat in self._list_beats()
        )

    def _list_beats(self) -> list[tuple[SignedHead, DueBeat]]:
        standing = [signed for signed in self.list_standing() if self._agrees(signed)]
        return [
            (signed, self._beats[signed.head.position])
            for signed in standing
            if signed.head.position in self._beats
        ]

    def _find_beat_problem(self) -> tuple[int, str] | None:
        """Find a beat that came before its time, or a day that was promised in another name."""
        for signed, beat in self._list_beats():
            if beat.is_early(_read(signed.signed_at)):
                return beat.position, (
                    f"the beat at {beat.position} came before its time: the market signed it "
                    f"on {signed.signed_at}"
                )
        names = {(signed.head.zone, signed.public_key) for signed in self.heads}
        positions = [signed.head.position for signed in self.heads]
        first, last = min(positions, default=0), max(positions, default=0)
        for position, named in self._promised.items():
            # Before and after all heads it may have been another key's turn.
            if first < position <= last and named not in names:
                return position, f"a day was promised for zone {named[0]} under another key"
        return None

    def find_problem(self) -> tuple[int, str] | None:
        """Find the earliest head that the log contradicts, with a sentence on it.

        Heads from before the snapshot that a transcript may begin with say nothing of it: with
        none but those, nothing is known of the log.
        """
        first = self._first or 0
        if self.heads and all(signed.head.position < first for signed in self.heads):
            return first, f"all heads of the witness are of entries before {first}"
        for signed in sorted(self.list_standing(), key=lambda s: s.head.position):
            head = signed.head
            found = self._found.get(head.position)
            if head.position > self._last:
                return head.position, (
                    f"the log was cut short: it ends at {self._last}, and the market signed "
                    f"a head at {head.position} on {signed.signed_at}"
                )
            if head.position >= first and found != head.hash:
                return head.position, (
                    f"the log was written again: its entry {head.position} has the hash {found}, "
                    f"and the market signed {head.hash} on {signed.signed_at}"
                )
        return self._find_beat_problem()


def _read(moment: str) -> datetime:
    """Read a moment; what is none, as a stranger's log may have it, is long before all."""
    try:
        found = datetime.fromisoformat(moment)
    except ValueError:
        return _LONG_AGO
    return _LONG_AGO if found.tzinfo is None else max(found, _LONG_AGO)
