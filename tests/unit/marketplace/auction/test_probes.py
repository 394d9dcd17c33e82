"""What stands still is said to stand still, on every page and address that says anything of it."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest

from marketplace.accounts.models import User
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid, Pricing
from marketplace.auction.probes import (
    LANE_TASK,
    WORKER_TASK,
    HealthPart,
    name_zone_task,
    run_probes,
)
from marketplace.common import heartbeats
from marketplace.common.models import DurableWork, Heartbeat, WorkState
from marketplace.fleet.models import Node, NodeStatus, Zone
from marketplace.fleet.policy_settings import find_beats_per_slot
from tests import builders
from tests import market_builders as market
from tests.builders import NOW, PASSWORD
from tests.pages import read_page

pytestmark = pytest.mark.django_db


@pytest.fixture
def zone(monkeypatch):
    monkeypatch.setattr("marketplace.common.clock.now", lambda: NOW)
    made = market.zone()
    market.node(made)
    builders.beat_everything()
    return made


def troubles() -> list[tuple[HealthPart, str]]:
    return [(probe.part, probe.text) for probe in run_probes(now=NOW) if not probe.is_ok]


def silence(*tasks: str) -> None:
    Heartbeat.objects.filter(task__in=tasks).update(ok_at=NOW - timedelta(minutes=5))


def test_a_market_in_which_everything_works_has_no_trouble(zone, client):
    assert troubles() == []
    assert "Everything works" in read_page(client.get("/status"))
    for part in HealthPart:
        answer = client.get(f"/healthz/{part}")
        assert (answer.status_code, answer.json()) == (200, {"ok": True, "problems": []})


def test_a_frozen_lane_is_said_everywhere(zone, client):
    silence(LANE_TASK)
    assert troubles() == [(HealthPart.LANE, "The auction lane is silent: no bid is decided.")]
    page = read_page(client.get("/status"))
    assert "Everything works" not in page
    assert "Away" in page
    assert client.get("/healthz/lane").status_code == 503
    assert client.get("/healthz/worker").status_code == 200
    client.force_login(User.objects.create_superuser("root@example.com", PASSWORD))
    assert "The auction lane is silent" in read_page(client.get("/operator"))


def test_a_bid_that_waits_for_too_long_is_trouble_of_its_zone(zone):
    bid = market.bid(builders.organisation(usd="10"), zone)
    Bid.objects.filter(pk=bid.pk).update(created_at=NOW - timedelta(seconds=14))
    assert troubles() == []
    Bid.objects.filter(pk=bid.pk).update(created_at=NOW - timedelta(seconds=16))
    [probe] = [probe for probe in run_probes(now=NOW) if not probe.is_ok]
    assert (probe.part, probe.zone, probe.since) == (
        HealthPart.LANE,
        zone,
        NOW - timedelta(seconds=16),
    )


def test_a_zone_that_the_lane_cannot_enter_is_trouble_of_its_own(zone):
    other = market.zone()
    market.node(other)
    builders.beat_everything()
    Heartbeat.objects.filter(task=name_zone_task(other.pk)).update(
        ok_at=NOW - timedelta(minutes=5), error="LogBroken: position 7"
    )
    [probe] = [probe for probe in run_probes(now=NOW) if not probe.is_ok]
    assert (probe.part, probe.zone, probe.since) == (
        HealthPart.LANE,
        other,
        NOW - timedelta(minutes=5),
    )
    assert probe.text == "The lane cannot enter the zone: LogBroken: position 7."


def test_silent_workers_and_a_silent_clock_are_told_apart(zone, client):
    silence(WORKER_TASK)
    assert [part for part, _ in troubles()] == [HealthPart.WORKER]
    assert "progress and results come late" in read_page(client.get("/status"))
    silence(LANE_TASK)
    assert [part for part, _ in troubles()] == [HealthPart.BEAT, HealthPart.LANE, HealthPart.WORKER]


def test_a_market_that_never_ran_does_not_work(zone):
    Heartbeat.objects.all().delete()
    assert [part for part, _ in troubles()] == [HealthPart.BEAT, HealthPart.LANE, HealthPart.WORKER]


def test_a_zone_without_a_node_is_said(zone):
    Node.objects.update(status=NodeStatus.OFFLINE)
    assert troubles() == [(HealthPart.NODES, "No node runs.")]


def test_books_that_do_not_balance_and_tasks_that_fail_are_said_until_they_succeed(zone):
    heartbeats.record_failure("payments.books_check", "BooksUnbalanced: no", now=NOW)
    heartbeats.record_failure("tiers.tick", "ValueError: x\0y", now=NOW)
    assert troubles() == [
        (HealthPart.MONEY, "BooksUnbalanced: no"),
        (HealthPart.WORKER, "tiers.tick fails: ValueError: xy"),
    ]
    for task in ("payments.books_check", "tiers.tick"):
        heartbeats.record_success(task, now=NOW)
    assert troubles() == []


@pytest.mark.parametrize(
    ("kind", "minutes", "changed", "text"),
    [
        ("vendors.prepare", 4, {}, ""),
        ("vendors.prepare", 5, {}, "vendors.prepare is due 1 times, and no worker does it."),
        ("vendors.prepare", 5, {"lease_token": "x", "lease_until": NOW + timedelta(seconds=1)}, ""),
        (
            *("vendors.prepare", 0, {"state": WorkState.FAILED}),
            "vendors.prepare failed 1 times and waits to be tried again.",
        ),
        ("exports.push", 9, {"state": WorkState.FAILED}, ""),
        ("of.yesterday", 9, {}, ""),
    ],
)
def test_durable_work_that_no_worker_does_is_said(zone, kind, minutes, changed, text):
    due_at = NOW - timedelta(minutes=minutes)
    DurableWork.objects.create(kind=kind, key="one", due_at=due_at, **changed)
    assert troubles() == ([(HealthPart.WORKER, text)] if text else [])


def test_a_busy_task_is_written_down_once_in_ten_seconds(zone, monkeypatch):
    monkeypatch.setattr("marketplace.common.heartbeats._written", {})
    times = SimpleNamespace()
    monkeypatch.setattr("marketplace.common.heartbeats.time", times)
    for second, passed in enumerate((0.0, 9.9, 10.1)):
        times.monotonic = lambda passed=passed: passed
        heartbeats.record_success(LANE_TASK, now=NOW + timedelta(seconds=second))
    assert Heartbeat.objects.get(task=LANE_TASK).ok_at == NOW + timedelta(seconds=2)


def test_tasks_that_the_clock_does_not_send_leave_no_heartbeat():
    assert heartbeats.is_watched(LANE_TASK)
    assert not heartbeats.is_watched("auction.decide_pending_bids")


@pytest.mark.parametrize(
    ("changes", "after_s", "text"),
    [
        ({}, 59, None),
        ({}, 60, "No solve came into force: none was ready."),
        ({"beats_still": 3}, 60, None),
        # All night nothing ran: no beat came, and so prices stand for no reason of their own.
        ({"beats_still": 1}, 36_000, None),
        ({"problem": "Odd"}, 60, "No solve came into force: Odd."),
        ({"solve_s": 9.0}, 60, "A solve takes 9 s, and a beat 2 s: set fewer beats_per_slot."),
        ({"beats_still": 0, "still_since": None}, -10, None),
        (
            {"beats_still": 0, "still_since": None},
            -30,
            "Its log is 30 s ahead: a clock was wrong. No prices are solved until the time has "
            "come.",
        ),
    ],
)
def test_prices_that_stand_still_are_said_and_why(zone, changes, after_s, text):
    refresh_zone(zone=zone, now=NOW)
    Pricing.objects.update(**{"still_since": NOW, "beats_still": 4} | changes)
    after = NOW + timedelta(seconds=after_s)
    found = [probe for probe in run_probes(now=after) if probe.part == HealthPart.PRICES]
    assert [(probe.text, probe.zone) for probe in found] == ([(text, zone)] if text else [])


def test_beats_without_prices_are_counted_until_some_come(zone):
    for part in range(3):
        refresh_zone(zone=zone, now=NOW + timedelta(seconds=2.5 * part))
    found = Pricing.objects.values_list("beats_still", "still_since")
    assert list(found) == [(3, NOW)]
    market.reprice(zone, NOW + timedelta(seconds=7.5))
    assert list(found.all()) == [(0, None)]


@pytest.mark.parametrize(("slot_s", "beats"), [(2, 1), (15, 2), (24, 4), (600, 4)])
def test_short_slots_have_fewer_beats_so_that_the_lane_misses_none(slot_s, beats):
    assert find_beats_per_slot(Zone(slot_s=slot_s)) == beats
    assert find_beats_per_slot(Zone(slot_s=slot_s, settings={"beats_per_slot": 3})) == 3
