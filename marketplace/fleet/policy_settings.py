"""Parameters of a zone's price policy: which there are, and what they may be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction

from marketplace.accounts.models import User
from marketplace.common.errors import Conflict, UserError
from marketplace.fleet import locks
from marketplace.fleet.models import Zone, ZoneChange
from marketplace.fleet.slots import beat_at
from scheduler.auction.log.rules import BEATS_PER_SLOT, MOST_BEATS
from scheduler.types import Beat


@dataclass(frozen=True, slots=True)
class Parameter:
    """What a parameter of a price policy may be."""

    kind: type
    least: float = 0.0
    most: float = math.inf

    @property
    def words(self) -> str:
        if self.kind is bool:
            return "true or false"
        number = "a whole number" if self.kind is int else "a number"
        limits = f"at least {_write(self.least)}"
        if self.most < math.inf:
            limits = f"from {_write(self.least)} to {_write(self.most)}"
        return f"{number}, {limits}"


def _write(limit: float) -> str:
    """A limit as people write numbers, without an exponent."""
    return f"{limit:,.6f}".rstrip("0").rstrip(".")


#: Rules of the engine itself, of which ``scheduler.auction.ZoneRules`` says what they do.
RULE_PARAMETERS = {
    "refusal_hints": Parameter(bool),
    #: Beats of a slot: so often prices solved on the state of the beat before come into force.
    "beats_per_slot": Parameter(int, least=1, most=MOST_BEATS),
    #: Providers earn a rate posted each day instead of their asks.
    "posts_rates": Parameter(bool),
    #: The house's fee, micro-dollars for each work unit: dollars a million units.
    "fee_per_unit": Parameter(float, most=1_000_000.0),
}
#: Parameters of the ``lagrangian`` policy.
POLICY_PARAMETERS = {
    #: How fast a cell's price grows with its use between two solves.
    "growth": Parameter(float, most=10.0),
    #: Whole past days that a forecast looks at.
    "past_days": Parameter(int, most=28),
    #: ``scheduler.auction.prices.Settings``.
    "futures": Parameter(int, least=1, most=100),
    "iterations": Parameter(int, least=1, most=1000),
    "most_tasks": Parameter(int, least=1, most=20_000),
    "first_step": Parameter(float, least=1e-6, most=1.0),
    "last_step": Parameter(float, least=1e-6, most=1.0),
}
#: What posted rates go by where a provider is alone in a zone, micro-dollars per work unit.
RATE_PARAMETERS = {
    #: Stands in for the others' asks.
    "reference_rate_micros": Parameter(float, most=1_000_000.0),
    #: Without it: the highest ask that is paid.
    "ask_cap_micros": Parameter(float, most=1_000_000.0),
}
#: What a zone lets its bidders do.
BID_PARAMETERS = {
    #: While the zone is new, one organisation may hold a part of it only.
    "holding_limit": Parameter(bool),
}
CHANGED = "Somebody changed these settings meanwhile. Look at them again."
#: Shortest beat, seconds: the lane comes by every two.
LEAST_BEAT_S = 2.5
PARAMETERS = RULE_PARAMETERS | POLICY_PARAMETERS | RATE_PARAMETERS | BID_PARAMETERS


def find_beats_per_slot(zone: Zone) -> int:
    """Times a slot that prices come into force: no more than a lane and a solve can follow."""
    return max(1, min(_read_beats(zone.settings), int(zone.slot_s / LEAST_BEAT_S)))


def find_beat(zone: Zone, at: datetime) -> Beat:
    """The beat under way at a moment."""
    return beat_at(zone, at, beats=find_beats_per_slot(zone))


def _read_beats(settings: Mapping[str, Any]) -> int:
    return int(settings.get("beats_per_slot", BEATS_PER_SLOT))


def find_unit_fee(zone: Zone) -> float:
    """Micro-dollars that the house takes for each work unit done in the zone."""
    return float(zone.settings.get("fee_per_unit", 0.0))


def check_policy_settings(settings: Mapping[str, Any]) -> None:
    """Refuse parameters that are unknown or out of bounds, with ``invalid_policy_setting``."""
    if not isinstance(settings, Mapping):
        raise UserError(
            "invalid_policy_setting",
            'Settings are an object of names and values, such as {"growth": 0.1}.',
            param="settings",
        )
    for name, value in settings.items():
        parameter = PARAMETERS.get(name)
        if parameter is None:
            raise UserError(
                "invalid_policy_setting",
                f"There is no setting {name!r}; there are {', '.join(sorted(PARAMETERS))}.",
                param=f"settings.{name}",
            )
        if not _fits_parameter(parameter, value):
            raise UserError(
                "invalid_policy_setting",
                f"{name} is {parameter.words}, not {value!r}.",
                param=f"settings.{name}",
            )


def _fits_parameter(parameter: Parameter, value: object) -> bool:
    if parameter.kind is bool or isinstance(value, bool):
        return isinstance(value, bool) and parameter.kind is bool
    if not isinstance(value, int if parameter.kind is int else (int, float)):
        return False
    # An integer of any size compares with a float; it does not become one.
    is_number = isinstance(value, int) or math.isfinite(value)
    return is_number and parameter.least <= value <= parameter.most


def set_policy_settings(
    *,
    zone: Zone,
    settings: Mapping[str, Any],
    now: datetime,
    set_by: User | None = None,
    reason: str = "",
    expected: Mapping[str, Any] | None = None,
) -> Zone:
    """Give a zone's price policy other parameters, in place of all it has.

    The zone's lane writes the change to its log before it decides the next bid. What is as it was
    changes nothing.

    Parameters
    ----------
    set_by, reason
        Who wants it and why; without them, a command on the machine.
    expected
        The parameters that the change was made from, where somebody looked at them before.

    Raises
    ------
    UserError
        ``invalid_policy_setting``; nothing was changed.
    Conflict
        ``settings_changed``: they are not the expected ones any more; nothing was changed.
    """
    check_policy_settings(settings)
    with transaction.atomic():
        zone = locks.lock_zone(zone.pk)
        if expected is not None and zone.settings != dict(expected):
            raise Conflict("settings_changed", CHANGED)
        beats = _read_beats(zone.settings)
        if _read_beats(settings) != beats:
            raise UserError(
                "invalid_policy_setting",
                f"beats_per_slot stays {beats} as long as the zone lives: verifiers of its log "
                "count by it. For other beats, open another zone.",
                param="settings.beats_per_slot",
            )
        if zone.settings != dict(settings):
            ZoneChange.objects.create(
                zone=zone,
                before=zone.settings,
                after=dict(settings),
                set_by=set_by,
                reason=reason,
                set_at=now,
            )
            zone.settings = dict(settings)
            zone.save(update_fields=["settings"])
    return zone


def list_differences(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[tuple[str, Any, Any]]:
    """Each parameter that differs, with its value before and after; ``None``: as it is built."""
    names = sorted({*before, *after})
    pairs = ((name, before.get(name), after.get(name)) for name in names)
    return [(name, was, will) for name, was, will in pairs if was != will]
