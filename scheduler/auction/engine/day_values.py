"""What the seeds of a day follow from, and the rules that wait for a day.

A secret is promised the day before and opened when its day begins. Rules that are changed on a day
hold from the day after the next on: the value of that day is not promised before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from scheduler.auction.log.codec import rules_from_json, rules_to_json
from scheduler.auction.log.events import DayOpened, DayPromised
from scheduler.auction.log.rules import CHARGES, ZoneRules

#: Days after that of their change from which on rules hold.
RULES_AFTER = 2


@dataclass(frozen=True, slots=True)
class DayState:
    """The value that seeds follow from, the promise of the next, and rules that wait."""

    #: Before the log's first opened day it follows from the rules that the log began with.
    value: str
    #: Whose value it is; ``None``: no day's.
    day: int | None = None
    #: The day whose secret is promised, and the secret's hash.
    promised: tuple[int, str] | None = None
    #: Rules that were changed, each with the day of the change; of a day the last ones.
    waiting: tuple[tuple[int, ZoneRules], ...] = ()

    @property
    def has_begun(self) -> bool:
        """Whether there is a value, a promise, or rules that wait."""
        return self.day is not None or self.promised is not None or bool(self.waiting)


def commit_secret(secret: str) -> str:
    """Give what a secret is promised by."""
    return sha256(secret.encode()).hexdigest()


def take_charges(rules: ZoneRules, of: ZoneRules) -> ZoneRules:
    """Give rules with what cards and tax cost by others."""
    return replace(rules, **{name: getattr(of, name) for name in CHARGES})


def change_later(state: DayState, rules: ZoneRules, *, in_force: ZoneRules, today: int) -> DayState:
    """Let rules wait, and those that wait already have their charges."""
    waiting = [(day, take_charges(each, rules)) for day, each in state.waiting if day != today]
    wanted = waiting[-1][1] if waiting else take_charges(in_force, rules)
    if rules != wanted:
        waiting.append((today, rules))
    return replace(state, waiting=tuple(waiting))


def find_rules(state: DayState, in_force: ZoneRules, *, day: int) -> ZoneRules:
    """Give the rules that hold from the first beat of a day on."""
    due = [rules for changed, rules in state.waiting if changed + RULES_AFTER <= day]
    return due[-1] if due else in_force


def drop_due_rules(state: DayState, *, day: int) -> DayState:
    """Forget the rules that hold from a day on."""
    left = tuple(one for one in state.waiting if one[0] + RULES_AFTER > day)
    return replace(state, waiting=left)


def lapse_promise(state: DayState, *, today: int) -> DayState:
    """Drop a promise as another beat of its day comes: it was not opened with the first.

    Else the market could look at the day's prices before it chooses between the two values.
    """
    lapses = state.promised is not None and state.promised[0] <= today
    return replace(state, promised=None) if lapses else state


def promise_day(state: DayState, event: DayPromised, *, today: int) -> DayState:
    """Take a promise.

    Raises
    ------
    ValueError
        If the day is not the next, or promised already.
    """
    if event.day != today + 1:
        raise ValueError(f"day {event.day} was promised on day {today}")
    if state.promised is not None and state.promised[0] >= event.day:
        raise ValueError(f"day {event.day} was promised twice")
    return replace(state, promised=(event.day, event.commitment))


def open_day(state: DayState, event: DayOpened, *, today: int) -> DayState:
    """Take the value of a promised day.

    Raises
    ------
    ValueError
        If it is not today, or the secret is not the one that was promised.
    """
    if event.day != today or state.promised != (event.day, commit_secret(event.secret)):
        raise ValueError(f"the secret of day {event.day} is not the one promised for today")
    # The signature's bytes: its text has other forms, and each would be another value.
    text = event.secret.encode() + b"|" + bytes.fromhex(event.witness_signature)
    value = sha256(text).hexdigest()
    return DayState(value=value, day=event.day, waiting=state.waiting)


def day_to_json(state: DayState) -> dict[str, Any]:
    """Give the state as plain JSON values."""
    return {
        "value": state.value,
        "day": state.day,
        "promised": None if state.promised is None else list(state.promised),
        "rules": [[day, rules_to_json(rules)] for day, rules in state.waiting],
    }


def day_from_json(data: dict[str, Any]) -> DayState:
    """Read what ``day_to_json`` wrote."""
    promised = data["promised"]
    return DayState(
        value=str(data["value"]),
        day=None if data["day"] is None else int(data["day"]),
        promised=None if promised is None else (int(promised[0]), str(promised[1])),
        waiting=tuple((int(day), rules_from_json(rules)) for day, rules in data["rules"]),
    )
