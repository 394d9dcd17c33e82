"""Rules that wait for a day.

Those that are changed on a day come into force after the first beat of the day after the next: its
value is not promised before, so nobody sees first what its seeds would make of them.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler.auction.log.rules import CHARGES, ZoneRules

#: Days after that of their change from which on rules hold.
RULES_AFTER = 2

#: Rules that were changed, each with the day of the change; of a day the last ones.
WaitingRules = tuple[tuple[int, ZoneRules], ...]


def take_charges(rules: ZoneRules, of: ZoneRules) -> ZoneRules:
    """Give rules with what cards and tax cost by others."""
    return replace(rules, **{name: getattr(of, name) for name in CHARGES})


def add_waiting(
    waiting: WaitingRules, rules: ZoneRules, *, in_force: ZoneRules, today: int
) -> WaitingRules:
    """Let rules wait, and those that wait already have their charges."""
    others = [(day, take_charges(each, rules)) for day, each in waiting if day != today]
    wanted = others[-1][1] if others else take_charges(in_force, rules)
    return (*others, (today, rules)) if rules != wanted else tuple(others)


def find_due_rules(waiting: WaitingRules, in_force: ZoneRules, *, day: int) -> ZoneRules:
    """Give the rules that hold from the beat on that comes after one of a day."""
    due = [rules for changed, rules in waiting if changed + RULES_AFTER <= day]
    return due[-1] if due else in_force


def drop_due_rules(waiting: WaitingRules, *, day: int) -> WaitingRules:
    """Forget the rules that hold from there on."""
    return tuple(one for one in waiting if one[0] + RULES_AFTER > day)
