"""What the seeds of a day follow from: promised the day before, opened when it begins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from scheduler.auction.log.codec import rules_from_json, rules_to_json
from scheduler.auction.log.events import DayOpened, DayPromised
from scheduler.auction.log.rules import ZoneRules


@dataclass(frozen=True, slots=True)
class DayState:
    """The value that seeds follow from, the promise of the next, and rules that wait for it."""

    #: Before the log's first opened day it follows from the rules that the log began with.
    value: str
    #: Whose value it is; ``None``: no day's.
    day: int | None = None
    #: The day whose secret is promised, and the secret's hash.
    promised: tuple[int, str] | None = None
    #: Rules that were changed before the promise and hold from its day on; those changed since.
    next_rules: ZoneRules | None = None
    later_rules: ZoneRules | None = None

    @property
    def has_begun(self) -> bool:
        """Whether there is a value, a promise, or rules that wait for one."""
        waits = (self.day, self.promised, self.next_rules, self.later_rules)
        return any(each is not None for each in waits)


def commit_secret(secret: str) -> str:
    """Give what a secret is promised by."""
    return sha256(secret.encode()).hexdigest()


def lapse_promise(state: DayState, *, today: int) -> DayState:
    """Drop a promise as another beat of its day comes: it was not opened with the first.

    Else the market could look at the day's prices before it chooses between the two values. Rules
    go on waiting, for the next promise.
    """
    lapses = state.promised is not None and state.promised[0] <= today
    return replace(state, promised=None) if lapses else state


def promise_day(state: DayState, event: DayPromised, *, today: int) -> DayState:
    """Take a promise, and let rules that were changed before it wait for its day.

    Raises
    ------
    ValueError
        If the day is not the next, or promised already.
    """
    if event.day != today + 1:
        raise ValueError(f"day {event.day} was promised on day {today}")
    if state.promised is not None and state.promised[0] >= event.day:
        raise ValueError(f"day {event.day} was promised twice")
    return replace(
        state,
        promised=(event.day, event.commitment),
        next_rules=state.later_rules or state.next_rules,
        later_rules=None,
    )


def open_day(state: DayState, event: DayOpened, *, today: int) -> DayState:
    """Take the value of a promised day; the rules that waited for it are the caller's to take.

    Raises
    ------
    ValueError
        If it is not today, or the secret is not the one that was promised.
    """
    if event.day != today or state.promised != (event.day, commit_secret(event.secret)):
        raise ValueError(f"the secret of day {event.day} is not the one promised for today")
    value = sha256(f"{event.secret}|{event.witness_signature}".encode()).hexdigest()
    return DayState(value=value, day=event.day, later_rules=state.later_rules)


def day_to_json(state: DayState) -> dict[str, Any]:
    """Give the state as plain JSON values."""
    rules = (state.next_rules, state.later_rules)
    return {
        "value": state.value,
        "day": state.day,
        "promised": None if state.promised is None else list(state.promised),
        "rules": [None if each is None else rules_to_json(each) for each in rules],
    }


def day_from_json(data: dict[str, Any]) -> DayState:
    """Read what ``day_to_json`` wrote."""
    promised, rules = data["promised"], data["rules"]
    next_rules, later_rules = (None if each is None else rules_from_json(each) for each in rules)
    return DayState(
        value=str(data["value"]),
        day=None if data["day"] is None else int(data["day"]),
        promised=None if promised is None else (int(promised[0]), str(promised[1])),
        next_rules=next_rules,
        later_rules=later_rules,
    )
