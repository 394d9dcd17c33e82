"""From when a zone's prices follow the settings that its operator gave it."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from marketplace.auction.book import engine_cache as books
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.selectors import SettingsStart, load_settings_start
from marketplace.fleet import slots
from marketplace.fleet.models import Zone
from marketplace.fleet.services import set_policy_settings
from tests import market_builders as market
from tests.builders import NOW

pytestmark = pytest.mark.django_db


def find_growth(zone: Zone, now: datetime) -> float:
    with books.read_book(zone=zone, now=now) as book:
        return book.engine.rules.settings.get("growth", 0.0)


def test_an_operator_sees_from_when_prices_follow_what_was_set() -> None:
    zone = market.zone(slot_s=600, horizon_slots=12)
    market.node(zone)
    refresh_zone(zone=zone, now=NOW)
    assert load_settings_start(zone, now=NOW) == SettingsStart(None, None)
    # The log is of half a day, and the next day is promised.
    later = NOW + timedelta(hours=13)
    refresh_zone(zone=zone, now=later)
    with books.read_book(zone=zone, now=later) as book:
        today, day_slots = book.engine.today, book.engine.rules.day_slots
    start = slots.slot_starts_at(zone, (today + 2) * day_slots)
    assert load_settings_start(zone, now=later) == SettingsStart(None, start)
    zone = set_policy_settings(zone=zone, settings={"growth": 0.2}, now=later)
    # What the lane has not written yet, and what it has.
    assert load_settings_start(zone, now=later) == SettingsStart(start, start)
    refresh_zone(zone=zone, now=later)
    assert load_settings_start(zone, now=later) == SettingsStart(start, start)
    # With the beat after the first one of that day.
    for now, growth in ((start, 0.0), (start + timedelta(minutes=10), 0.2)):
        refresh_zone(zone=zone, now=now)
        assert find_growth(zone, now) == growth
    assert load_settings_start(zone, now=now).wanted_at is None
