"""The engine of a process follows the log, from snapshots or from where it stands."""

from __future__ import annotations

from itertools import pairwise

import pytest
from django.db import connection

from marketplace.auction.book import engine_cache as books
from marketplace.auction.book.snapshot_store import snapshot_zones
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone, sweep_zones
from marketplace.auction.models import Bid, LogEntry, MarketHead, Snapshot
from marketplace.auction.probes import name_zone_task
from marketplace.common.models import Heartbeat
from tests import builders
from tests import market_builders as market
from tests.builders import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture
def zone():
    zone = market.zone()
    market.node(zone)
    market.node(zone)
    return zone


@pytest.fixture
def owner():
    return builders.organisation(usd="100")


def sell(owner, zone, count, **terms):
    for _ in range(count):
        market.bid(owner, zone, price_micros=900_000, **terms)
    decide_pending_bids(zone=zone, now=NOW)


def test_engine_is_rebuilt_from_the_log_with_the_same_hash(zone, owner):
    sell(owner, zone, 5)
    head = MarketHead.objects.get(zone=zone)
    books.discard_lane_book(zone_id=zone.pk)
    book = books.load_lane_book(head=head)
    assert (book.engine.position, book.engine.head_hash) == (head.position, head.head_hash)


def test_snapshots_are_taken_and_a_restart_goes_on_from_the_latest(zone, owner, monkeypatch):
    monkeypatch.setattr(books, "SNAPSHOT_AT_LATEST", 5)
    for _ in range(4):
        sell(owner, zone, 3, slots=40)
    taken = list(Snapshot.objects.order_by("position").values_list("position", flat=True))
    assert taken[0] == 0
    assert len(taken) >= 3
    assert all(later - earlier >= 5 for earlier, later in pairwise(taken))
    # Only what came after the latest snapshot is read.
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute("DELETE FROM auction_logentry WHERE position <= %s", [taken[-1]])
    books.discard_lane_book(zone_id=zone.pk)
    head = MarketHead.objects.get(zone=zone)
    assert books.load_lane_book(head=head).engine.head_hash == head.head_hash


def test_snapshots_agree_with_the_replay(zone, owner, monkeypatch):
    monkeypatch.setattr(books, "SNAPSHOT_AT_LATEST", 4)
    for _ in range(3):
        sell(owner, zone, 3, slots=40)
    assert verify_zone(zone).problems == []


@pytest.mark.parametrize(
    "change",
    [
        "event = replace(event, '\"bid\":900000', '\"bid\":900001')",
        "outcome = replace(outcome, '\"payment\":', '\"payment\":1')",
        "outcome = replace(outcome, '\"admitted\":true', '\"admitted\":false')",
        "hash = repeat('0', 64)",
        "position = 900",
    ],
)
def test_zone_whose_log_was_altered_sells_nothing_more(zone, owner, change):
    sell(owner, zone, 2)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(f"UPDATE auction_logentry SET {change} WHERE position = 5")
        assert cursor.rowcount == 1
        cursor.execute("SET LOCAL session_replication_role = origin")
    books.discard_lane_book(zone_id=zone.pk)
    bid = market.bid(owner, zone)
    with pytest.raises(books.LogBroken, match="auction_verify"):
        decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()
    assert bid.status == "pending"
    assert LogEntry.objects.filter(kind="BidArrived").count() == 2


def test_worker_takes_snapshots_from_its_replica_and_keeps_the_latest(zone, owner, monkeypatch):
    monkeypatch.setattr(books, "SNAPSHOT_EVERY", 4)
    taken = []
    for _ in range(6):
        sell(owner, zone, 4, slots=40)
        assert snapshot_zones(clock=lambda: NOW) == 1
        assert snapshot_zones(clock=lambda: NOW) == 0
        taken.append(MarketHead.objects.get(zone=zone).position)
    stored = Snapshot.objects.order_by("position").values_list("position", flat=True)
    assert list(stored) == [0, *taken[-3:]]
    assert verify_zone(zone).problems == []
    books.discard_lane_book(zone_id=zone.pk)
    sell(owner, zone, 1, slots=40)
    assert verify_zone(zone).problems == []


def test_a_snapshot_of_a_zone_that_is_broken_is_not_taken(zone, owner, monkeypatch):
    monkeypatch.setattr(books, "SNAPSHOT_EVERY", 1)
    sell(owner, zone, 1)
    other = market.zone()
    refresh_zone(zone=other, now=NOW)
    MarketHead.objects.filter(zone=zone).update(head_hash="0" * 64)
    assert snapshot_zones(clock=lambda: NOW) == 1
    assert set(Snapshot.objects.values_list("zone_id", "position")) == {
        (zone.pk, 0),
        (other.pk, 0),
        (other.pk, 1),
    }


def test_a_reader_far_behind_goes_on_from_a_snapshot(zone, owner, monkeypatch):
    monkeypatch.setattr(books, "SNAPSHOT_EVERY", 6)
    sell(owner, zone, 1, slots=40)
    with books.read_book(zone=zone, now=NOW) as book:
        old = book.engine
    sell(owner, zone, 4, slots=40)
    with books.read_book(zone=zone, now=NOW) as book:
        assert book.engine is old
    behind = books._read_books.pop(zone.pk)
    sell(owner, zone, 7, slots=40)
    assert snapshot_zones(clock=lambda: NOW) == 1
    sell(owner, zone, 1, slots=40)
    books._read_books[zone.pk] = behind
    with books.read_book(zone=zone, now=NOW) as book:
        assert book.engine is not old
        assert book.engine.head_hash == MarketHead.objects.get(zone=zone).head_hash


def test_broken_zone_does_not_stop_the_sweep_of_the_others(zone, owner):
    sell(owner, zone, 1)
    MarketHead.objects.filter(zone=zone).update(head_hash="0" * 64)
    other = market.zone()
    market.node(other)
    stuck, fine = market.bid(owner, zone), market.bid(owner, other)
    sweep_zones(clock=lambda: NOW)
    stuck.refresh_from_db()
    fine.refresh_from_db()
    assert (stuck.status, fine.status) == ("pending", "admitted")
    broken, works = (Heartbeat.objects.get(task=name_zone_task(one.pk)) for one in (zone, other))
    assert (broken.ok_at, works.ok_at, works.error) == (None, NOW, "")
    assert broken.error.startswith("LogBroken: ")


def test_rules_are_those_of_the_logs_beginning_whatever_the_zone_says_later(zone, owner):
    sell(owner, zone, 1)
    zone.horizon_slots = 10
    zone.save()
    books.discard_lane_book(zone_id=zone.pk)
    sell(owner, zone, 1, slots=8)
    assert verify_zone(zone).problems == []
    head = MarketHead.objects.get(zone=zone)
    assert books.load_lane_book(head=head).engine.rules.horizon_slots == market.HORIZON_SLOTS


def test_settings_of_a_zone_reach_its_rules():
    zone = market.zone(policy_settings={"refusal_hints": False, "growth": 0.25})
    market.node(zone)
    refresh_zone(zone=zone, now=NOW)
    head = MarketHead.objects.get(zone=zone)
    rules = books.load_lane_book(head=head).engine.rules
    assert (rules.policy, rules.refusal_hints, rules.settings) == (
        "lagrangian",
        False,
        {"growth": 0.25},
    )
    assert (rules.base_memory, rules.money_quantum, rules.first_slot) == (1.0, 1.0, 100)


def test_readers_keep_an_engine_of_their_own(zone, owner):
    sell(owner, zone, 1)
    head = MarketHead.objects.get(zone=zone)
    with books.read_book(zone=zone, now=NOW) as book:
        assert book is not books.load_lane_book(head=head)
        assert book.engine.head_hash == head.head_hash
    assert Bid.objects.count() == 1
