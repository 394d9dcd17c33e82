"""Price parts whose shown lines add up to the shown total."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from marketplace.web.templatetags.finetender import SMALL_MICROS, TINY_MICROS

_LABELS = {
    "vendor": "Data cleaning",
    "operational": "Node asks",
    "compute": "Compute price",
    "memory": "Memory price",
    "rounding": "Rounding up to a micro-dollar",
}
_MICROS_PER_CENT = 10_000


@dataclass(frozen=True, slots=True)
class PriceLine:
    key: str
    label: str
    #: Rounded as it is shown.
    micros: int


def quantum_of(total_micros: int) -> int:
    """What one shown unit is worth: cents, or hundredths of a cent under five cents."""
    if total_micros >= SMALL_MICROS or total_micros == 0:
        return _MICROS_PER_CENT
    return 100 if total_micros >= TINY_MICROS else 1


def price_lines(parts: Mapping[str, float], total_micros: int) -> list[PriceLine]:
    """Parts rounded by largest remainder, so that they sum to the rounded total."""
    quantum = quantum_of(total_micros)
    total_units = round(total_micros / quantum)
    amounts = {key: max(0.0, float(parts.get(key, 0.0))) for key in _LABELS}
    rounding = amounts.pop("rounding")
    amounts["compute"] += rounding if rounding < quantum else 0.0
    if rounding >= quantum:
        amounts["rounding"] = rounding
    units = {key: int(amount // quantum) for key, amount in amounts.items()}
    by_remainder = sorted(amounts, key=lambda key: amounts[key] % quantum, reverse=True)
    missing = total_units - sum(units.values())
    for key in by_remainder[: max(0, missing)]:
        units[key] += 1
    return [
        PriceLine(key, _LABELS[key], count * quantum)
        for key, count in units.items()
        if count or key in ("operational", "compute", "memory")
    ]
