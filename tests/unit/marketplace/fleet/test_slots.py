"""Slot arithmetic is exact at any length of slot."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from marketplace.fleet.models import Node, Provider, Zone
from marketplace.fleet.selectors import (
    build_node_spec,
    first_slot_from,
    last_slot_until,
    slot_at,
    slot_ends_at,
    slot_starts_at,
)
from scheduler import types as scheduler

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
zones = st.builds(
    lambda slot_s, shift: Zone(slot_s=slot_s, epoch_at=EPOCH + timedelta(microseconds=shift)),
    st.integers(1, 3600),
    st.integers(0, 10**12),
)
moments = st.integers(-(10**14), 10**15).map(lambda us: EPOCH + timedelta(microseconds=us))


@given(zones, moments)
def test_every_moment_is_in_exactly_the_slot_that_starts_before_and_ends_after_it(zone, moment):
    slot = slot_at(zone, moment)
    assert slot_starts_at(zone, slot) <= moment < slot_ends_at(zone, slot)
    assert slot_ends_at(zone, slot) == slot_starts_at(zone, slot + 1)


@given(zones, moments)
def test_only_whole_slots_count_from_and_until_a_moment(zone, moment):
    first, last = first_slot_from(zone, moment), last_slot_until(zone, moment)
    assert slot_starts_at(zone, first) >= moment > slot_starts_at(zone, first - 1)
    assert slot_ends_at(zone, last) <= moment < slot_ends_at(zone, last + 1)


def test_a_node_is_sold_in_whole_slots_of_its_availability_alone():
    zone = Zone(slot_s=10, epoch_at=EPOCH)
    node = Node(
        pk="node_1",
        provider=Provider(),
        gpu_type_id="A100",
        compute_capacity=400.0,
        memory_gb=80.0,
        ask_micros=7,
        available_from_at=EPOCH + timedelta(seconds=11),
        available_until_at=EPOCH + timedelta(seconds=59),
    )
    assert build_node_spec(zone, node) == scheduler.NodeSpec(
        id="node_1",
        gpu_type="A100",
        compute_capacity=400.0,
        memory_capacity=80.0,
        ask=7.0,
        available_from=2,
        available_until=4,
    )
