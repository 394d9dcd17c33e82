"""Days of a log: what the seeds of its prices follow from, so that nobody chooses them.

As a day begins, the market logs the hash of the next day's secret and the key of a witness, which
signs that entry (Ed25519). As the next day begins, it logs secret and signature: the day's value is
their hash. The market could not know it when it chose the secret, and the witness does not know the
secret. Seeds follow from the value and the beat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from .canonical_json import read_hex, serialize_canonical
from .entries import digest
from .heads import Sign, is_signed

#: Part of every signed text, so that no signature made for something else is one of a day.
DAY_FORMAT = "finetender-day-1"
#: Entries that come with a beat: prices that were solved for it, and what the day brings.
WITH_BEAT = ("PricesSolved", "DayOpened", "DayPromised")


@dataclass(frozen=True, slots=True)
class DayPromise:
    """An entry that promised a day's secret."""

    day: int
    #: The name under which the market signs heads of the log.
    zone: str
    #: SHA-256 of the secret, in hex.
    commitment: str
    #: Public key of the market, in hex, so that no other can have the name's promise signed.
    market_key: str = ""
    #: Public key of the witness, in hex; empty: nobody is asked.
    witness_key: str = ""
    #: Of the entry; empty where no log is kept.
    entry_hash: str = ""


@dataclass(frozen=True, slots=True)
class DayValue:
    """The value that seeds follow from, and the promise of the next."""

    #: Before the log's first opened day it is the hash of the rules that the log began with.
    value: str
    #: Whose value it is; ``None``: no day's.
    day: int | None = None
    promise: DayPromise | None = None


def commit_secret(secret: str) -> str:
    """Give what a secret is promised by."""
    return sha256(secret.encode()).hexdigest()


def choose_seed(value: str, *, slot: int, part: int) -> int:
    """Give what the random choices of the solve for a beat follow from.

    No one chooses it, and no bid and no rule has a part in it.
    """
    return int(sha256(f"{value}|{slot}|{part}".encode()).hexdigest()[:8], 16)


def write_promise(promise: DayPromise) -> bytes:
    """Give the text that a witness signs: canonical JSON.

    A witness signs one promise of a day of a market's zone and no other, or the market could choose
    among promises by the values that they lead to.
    """
    body = {
        "format": DAY_FORMAT,
        "market_key": promise.market_key,
        "zone": promise.zone,
        "day": promise.day,
        "hash": promise.entry_hash,
    }
    return serialize_canonical(body).encode()


def sign_promise(promise: DayPromise, *, sign: Sign) -> str:
    """Sign a promise, as its witness or as the market that asks for that; in hex."""
    return sign(write_promise(promise)).hex()


def is_witnessed(promise: DayPromise, signature: str) -> bool:
    """Whether the witness that a promise names signed it."""
    return is_signed(write_promise(promise), key=promise.witness_key, signature=signature)


def lapse_promise(state: DayValue, *, today: int) -> DayValue:
    """Drop a promise as another beat of its day comes: it was not opened with the first.

    Else the market could look at the day's prices before it chooses between two values.
    """
    lapses = state.promise is not None and state.promise.day <= today
    return replace(state, promise=None) if lapses else state


def promise_day(state: DayValue, promise: DayPromise, *, today: int) -> DayValue:
    """Take a promise.

    Raises
    ------
    ValueError
        If the day is not the next, or promised already.
    """
    if promise.day != today + 1:
        raise ValueError(f"day {promise.day} was promised on day {today}")
    if state.promise is not None and state.promise.day >= promise.day:
        raise ValueError(f"day {promise.day} was promised twice")
    return replace(state, promise=promise)


def open_day(
    state: DayValue, *, day: int, secret: str, witness_signature: str, today: int
) -> DayValue:
    """Take the value of a promised day.

    Raises
    ------
    ValueError
        If it is not today, the secret is not the one that was promised, or the witness that the
        promise names has not signed it.
    """
    promise = state.promise
    if promise is None or not promise.day == day == today:
        raise ValueError(f"day {day} was not promised the day before, or not opened as it began")
    if promise.commitment != commit_secret(secret):
        raise ValueError(f"the secret of day {day} is not the one that was promised")
    if promise.witness_key and promise.entry_hash and not is_witnessed(promise, witness_signature):
        # Without a signature, too: else the market could choose between two values.
        raise ValueError(f"the witness of day {day} has not signed the entry that promised it")
    if not promise.witness_key and witness_signature:
        raise ValueError(f"day {day} has a signature of no witness that its promise names")
    # The signature's bytes: its text has other forms, and each would be another value.
    signed = read_hex(witness_signature, length=64) if witness_signature else b""
    return DayValue(sha256(secret.encode() + b"|" + signed).hexdigest(), day)


def day_to_json(state: DayValue) -> dict[str, Any]:
    """Give the state as plain JSON values."""
    promise = state.promise
    return {
        "value": state.value,
        "day": state.day,
        "promise": None
        if promise is None
        else {name: getattr(promise, name) for name in DayPromise.__slots__},
    }


def day_from_json(data: Mapping[str, Any]) -> DayValue:
    """Read what ``day_to_json`` wrote."""
    promise = data["promise"]
    return DayValue(
        value=str(data["value"]),
        day=None if data["day"] is None else int(data["day"]),
        promise=None if promise is None else DayPromise(**promise),
    )


class DayReader:
    """Follows days, beats and seeds through a log's entries as JSON values.

    Parameters
    ----------
    rules, snapshot : mapping, optional
        What the log builds on, one of the two.
    """

    def __init__(
        self, rules: Mapping[str, Any] | None, snapshot: Mapping[str, Any] | None = None
    ) -> None:
        begun: Mapping[str, Any] = snapshot or {"rules": rules}
        known: Mapping[str, Any] = begun["rules"]
        self._day_slots, self._beats = int(known["day_slots"]), int(known["beats_per_slot"])
        self._slot = int(begun.get("first_slot", known["first_slot"]))
        self._beat = None if begun.get("beat") is None else (self._slot, int(begun["beat"][1]))
        self._state = day_from_json(begun["day"]) if snapshot else DayValue(digest(known))
        #: What the latest beat's seed follows from; unknown where the log begins with that beat.
        self._value = None if snapshot else self._state.value
        #: Whether nothing came since that beat but what belongs to it.
        self._is_fresh = False

    def take(self, event: Mapping[str, Any], *, entry_hash: str) -> None:
        """Go on by an entry.

        Raises
        ------
        ValueError
            If a beat has come before or there is none such, or a day is not promised and opened as
            it has to be.
        """
        today, kind = self._slot // self._day_slots, event["type"]
        if kind == "SlotAdvanced":
            beat = int(event["slot"]), int(event.get("part", 0))
            if not beat[1] < self._beats:
                raise ValueError(
                    f"slot {beat[0]} has {self._beats} beats, and not number {beat[1] + 1}"
                )
            if self._beat is not None and beat <= self._beat:
                raise ValueError(f"beat {beat[1] + 1} of slot {beat[0]} has come already")
            self._value, self._state = self._state.value, lapse_promise(self._state, today=today)
            self._slot, self._beat = max(beat[0], self._slot), beat
        elif kind == "DayPromised":
            named: dict[str, Any] = {name: event.get(name, "") for name in DayPromise.__slots__}
            named["entry_hash"] = entry_hash
            self._state = promise_day(self._state, DayPromise(**named), today=today)
        elif kind == "DayOpened":
            if not self._is_fresh:
                raise ValueError(f"day {event['day']} is not opened with its first beat")
            self._state = open_day(
                self._state,
                day=event["day"],
                secret=event["secret"],
                witness_signature=event.get("witness_signature", ""),
                today=today,
            )
        self._is_fresh = kind == "SlotAdvanced" or (self._is_fresh and kind in WITH_BEAT)

    def find_seed_problem(self, event: Mapping[str, Any]) -> str | None:
        """Say why the seed of solved prices is not the one that follows, if so."""
        if event["type"] != "PricesSolved" or self._value is None:
            return None
        if self._beat is None or not self._is_fresh:
            return "the prices do not come with a beat"
        slot, part = self._beat
        if event["seed"] != choose_seed(self._value, slot=slot, part=part):
            return "the seed of the solve does not follow from the log"
        return None
