"""Hours of sale and maintenance: the window that the auction sells moves on by itself."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime, time, timedelta

import pytest

from marketplace.common.errors import UserError
from marketplace.fleet.models import Node
from marketplace.fleet.sale_hours import SaleHours, find_sale_window, read_sale_hours
from marketplace.fleet.services import move_sale_windows, set_node_availability, set_sale_hours
from tests import market_builders as market


def utc(day: int, hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 3, day, hour, minute, tzinfo=UTC)


NIGHT = SaleHours(time(22), time(6))
DAY = SaleHours(time(8), time(18))


@pytest.mark.parametrize(
    ("hours", "now", "window"),
    [
        (DAY, utc(2, 7), (utc(2, 8), utc(2, 18))),
        (DAY, utc(2, 8), (utc(2, 8), utc(2, 18))),
        (DAY, utc(2, 18), (utc(3, 8), utc(3, 18))),
        # Past midnight.
        (NIGHT, utc(2, 5), (utc(1, 22), utc(2, 6))),
        (NIGHT, utc(2, 6), (utc(2, 22), utc(3, 6))),
        (NIGHT, utc(2, 23), (utc(2, 22), utc(3, 6))),
        (SaleHours(), utc(2, 5), (None, None)),
    ],
)
def test_the_window_is_the_present_stretch_or_the_next(hours, now, window):
    assert find_sale_window(hours, offered_until_at=None, now=now) == window


def paused(hours: SaleHours, begins: datetime, ends: datetime) -> SaleHours:
    return SaleHours(hours.opens, hours.closes, begins, ends)


@pytest.mark.parametrize(
    ("hours", "now", "window"),
    [
        # Without hours: until it begins, then from its end on.
        (paused(SaleHours(), utc(2, 10), utc(2, 12)), utc(2, 9), (None, utc(2, 10))),
        (paused(SaleHours(), utc(2, 10), utc(2, 12)), utc(2, 10), (utc(2, 12), None)),
        (paused(SaleHours(), utc(2, 10), utc(2, 12)), utc(2, 13), (utc(2, 12), None)),
        # Inside the hours, over their end, and over all of a day.
        (paused(DAY, utc(2, 10), utc(2, 12)), utc(2, 9), (utc(2, 8), utc(2, 10))),
        (paused(DAY, utc(2, 10), utc(2, 12)), utc(2, 11), (utc(2, 12), utc(2, 18))),
        (paused(DAY, utc(2, 16), utc(3, 9)), utc(2, 17), (utc(3, 9), utc(3, 18))),
        (paused(DAY, utc(2, 7), utc(2, 19)), utc(2, 9), (utc(3, 8), utc(3, 18))),
        (paused(DAY, utc(2, 7), utc(9, 19)), utc(2, 9), (utc(9, 19), None)),
    ],
)
def test_nothing_is_sold_in_maintenance(hours, now, window):
    assert find_sale_window(hours, offered_until_at=None, now=now) == window


def test_the_end_of_an_offer_is_kept():
    end = utc(2, 12)
    assert find_sale_window(DAY, offered_until_at=end, now=utc(2, 9)) == (utc(2, 8), end)


@pytest.mark.django_db
def test_a_window_that_is_over_moves_on_and_hours_can_be_taken_back():
    node, other = market.node(zone := market.zone()), market.node(zone)
    end = utc(20, 0)
    set_node_availability(node=node, available_from_at=None, available_until_at=end, now=utc(2, 7))
    set_sale_hours(node=node, change=asdict(DAY), now=utc(2, 7))
    node.refresh_from_db()
    assert (node.available_from_at, node.available_until_at) == (utc(2, 8), utc(2, 18))
    assert move_sale_windows(now=utc(2, 17)) == 0
    assert move_sale_windows(now=utc(2, 18)) == 1
    assert move_sale_windows(now=utc(2, 18)) == 0
    node.refresh_from_db()
    assert (node.available_from_at, node.available_until_at) == (utc(3, 8), utc(3, 18))
    set_sale_hours(node=node, change=asdict(SaleHours()), now=utc(3, 9))
    node.refresh_from_db()
    assert (node.available_from_at, node.available_until_at) == (None, end)
    assert Node.objects.get(pk=other.pk).available_until_at is None


@pytest.mark.django_db
@pytest.mark.parametrize(
    "hours",
    [
        SaleHours(time(8)),
        SaleHours(time(8), time(8)),
        SaleHours(maintenance_from_at=utc(2, 8)),
        SaleHours(maintenance_from_at=utc(2, 8), maintenance_until_at=utc(2, 7)),
        SaleHours(maintenance_from_at=utc(1, 1), maintenance_until_at=utc(1, 2)),
        SaleHours(
            maintenance_from_at=utc(2, 8), maintenance_until_at=utc(2, 8) + timedelta(days=100)
        ),
    ],
)
def test_hours_that_cannot_be_are_refused_and_change_nothing(hours):
    node = market.node(market.zone())
    with pytest.raises(UserError) as refusal:
        set_sale_hours(node=node, change=asdict(hours), now=utc(2, 7))
    assert refusal.value.code == "invalid_hours"
    node.refresh_from_db()
    assert (node.sale_opens, node.available_from_at, node.available_until_at) == (None, None, None)


@pytest.mark.django_db
def test_what_a_change_does_not_name_stays_and_maintenance_that_is_over_does_not():
    node = market.node(market.zone())
    set_sale_hours(node=node, change=asdict(DAY), now=utc(2, 7))
    pause = {"maintenance_from_at": utc(2, 9), "maintenance_until_at": utc(2, 10)}
    node = set_sale_hours(node=node, change=pause, now=utc(2, 7))
    assert read_sale_hours(node, now=utc(2, 9)) == replace(DAY, **pause)
    later = {"closes": time(17)}
    node = set_sale_hours(node=node, change=later, now=utc(2, 7, 30))
    assert read_sale_hours(node, now=utc(2, 8)) == replace(DAY, **pause, closes=time(17))
    # Before, the form as it was shown was refused for a time that was over.
    node = set_sale_hours(node=node, change={"closes": time(16)}, now=utc(2, 10))
    assert node.maintenance_until_at is None
    assert node.available_until_at == utc(2, 16)
