"""Slot arithmetic: slot ``t`` covers ``[epoch + t * slot_s, epoch + (t + 1) * slot_s)``.

Whole seconds and whole microseconds only, so a boundary belongs to exactly one slot.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from marketplace.fleet.models import Zone
from scheduler.types import Beat

DAY_S = 86_400


def count_slots_per_day(zone: Zone) -> int:
    """Whole slots that come nearest to a day, at least one."""
    return max(1, round(DAY_S / zone.slot_s))


def slot_at(zone: Zone, at: datetime) -> int:
    """The slot that holds a moment; negative before the zone's epoch."""
    return (at - zone.epoch_at) // timedelta(seconds=zone.slot_s)


def beat_at(zone: Zone, at: datetime, *, beats: int) -> Beat:
    """The beat under way at a moment, of a slot that has so many."""
    slot = slot_at(zone, at)
    begun = at - slot_starts_at(zone, slot)
    return Beat(slot, begun * beats // timedelta(seconds=zone.slot_s))


def slot_starts_at(zone: Zone, slot: int) -> datetime:
    return zone.epoch_at + timedelta(seconds=zone.slot_s * slot)


def slot_ends_at(zone: Zone, slot: int) -> datetime:
    """The first moment after the slot, which is the start of the next."""
    return slot_starts_at(zone, slot + 1)


def first_slot_from(zone: Zone, at: datetime) -> int:
    """The first slot that starts at or after a moment."""
    slot = slot_at(zone, at)
    return slot if slot_starts_at(zone, slot) == at else slot + 1


def last_slot_until(zone: Zone, at: datetime) -> int:
    """The last slot that ends at or before a moment."""
    return slot_at(zone, at) - 1
