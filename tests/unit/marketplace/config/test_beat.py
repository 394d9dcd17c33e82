"""The clock sends little while nothing is to be done, and all of it once something is."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from redbeat import RedBeatScheduler
from redis import Redis

from marketplace.auction.probes import LANE_TASK, WORKER_TASK
from marketplace.common import heartbeats
from marketplace.common.durable.services import NewWork, enqueue_work
from marketplace.common.models import Heartbeat
from marketplace.config import beat
from marketplace.jobs.models import Job, JobStatus
from marketplace.webhooks.durable import DELIVER
from tests import job_builders
from tests import market_builders as market
from tests.builders import NOW


class StillScheduler(beat.RestingScheduler):
    """One without Redis: ``sent`` is what it sent, ``at`` the machine's own clock."""

    def __init__(self) -> None:
        self._sent, self._is_at_rest, self._asked_at = {}, False, float("-inf")
        self.sent, self.at = Counter[str](), 36_000.0


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> StillScheduler:
    made = StillScheduler()

    def send(self: StillScheduler, entry: Any, **options: Any) -> str:
        self.sent[entry.task] += 1
        return "sent"

    monkeypatch.setattr(RedBeatScheduler, "apply_async", send)
    monkeypatch.setattr(beat.time, "monotonic", lambda: made.at)
    monkeypatch.setattr(beat, "close_old_connections", lambda: None)
    monkeypatch.setattr("marketplace.common.heartbeats._written", {})
    monkeypatch.setattr("marketplace.common.clock.now", lambda: NOW)
    return made


def as_entry(task: str) -> Any:
    return SimpleNamespace(task=task)


def run_minute(scheduler: StillScheduler) -> Counter[str]:
    """What is sent in a minute, each entry being due at multiples of its period."""
    scheduler.sent.clear()
    for _ in range(60):
        scheduler.at += 1.0
        for entry in settings.CELERY_BEAT_SCHEDULE.values():
            if scheduler.at % entry["schedule"] == 0:
                scheduler.apply_async(as_entry(entry["task"]), advance=False)
    return scheduler.sent


def test_an_idle_house_sends_at_most_sixty_tasks_a_minute(scheduler, monkeypatch):
    asked: list[float] = []

    def has_work(*, now: object) -> bool:
        asked.append(scheduler.at)
        return False

    monkeypatch.setattr(beat, "has_work", has_work)
    monkeypatch.setattr("marketplace.common.heartbeats.record_rest", lambda task, now: None)
    run_minute(scheduler)
    sent = run_minute(scheduler)
    assert sum(sent.values()) <= 60
    assert sent["auction.sweep"] == 10
    # What shows whether workers and lanes live.
    assert {LANE_TASK, WORKER_TASK} <= set(beat.REST_EVERY_S_OF)
    # Every task still comes, those of more than a minute at their own time.
    often = {e["task"] for e in settings.CELERY_BEAT_SCHEDULE.values() if e["schedule"] <= 60}
    assert often <= set(sent)
    assert len(asked) <= 120


def test_work_brings_every_task_at_its_own_pace_from_the_next_second_on(scheduler, monkeypatch):
    is_busy = False
    monkeypatch.setattr(beat, "has_work", lambda now: is_busy)
    monkeypatch.setattr("marketplace.common.heartbeats.record_rest", lambda task, now: None)
    run_minute(scheduler)
    is_busy = True
    sent = run_minute(scheduler)
    for entry in settings.CELERY_BEAT_SCHEDULE.values():
        if entry["schedule"] <= 60:
            assert sent[entry["task"]] >= 60 // entry["schedule"] - 1


@pytest.mark.django_db
def test_a_task_that_has_nothing_to_do_is_not_late_and_one_that_shows_life_says_so_itself(
    scheduler,
):
    for _ in range(2):
        for task in ("jobs.leases_sweep", "auction.sweep"):
            scheduler.apply_async(as_entry(task), advance=False)
        scheduler.at += 2.0
    assert scheduler.sent == {"jobs.leases_sweep": 1, "auction.sweep": 1}
    # Neither says anything where a task never ran, or where its last run failed.
    assert not Heartbeat.objects.exists()
    heartbeats._written.clear()
    heartbeats.record_success("jobs.leases_sweep", now=NOW - timedelta(minutes=1))
    heartbeats.record_failure("tiers.tick", "ValueError: x", now=NOW)
    heartbeats._written.clear()
    scheduler.at += 1.0
    scheduler._sent["tiers.tick"] = scheduler.at
    for task in ("jobs.leases_sweep", "tiers.tick"):
        scheduler.apply_async(as_entry(task), advance=False)
    rows = Heartbeat.objects.order_by("task").values_list("task", "ok_at", "error")
    assert list(rows) == [("jobs.leases_sweep", NOW, ""), ("tiers.tick", None, "ValueError: x")]


def test_where_the_database_does_not_answer_tasks_are_sent(scheduler, monkeypatch):
    def fail(*, now: object) -> bool:
        asked.append(scheduler.at)
        raise OSError

    asked: list[float] = []
    monkeypatch.setattr(beat, "has_work", fail)
    for _ in range(3):
        assert scheduler.apply_async(as_entry("tiers.tick"), advance=False) == "sent"
        scheduler.at += 2.0
    # Not at every turn: each may wait for long.
    assert asked == [scheduler.at - 4.0]


@pytest.mark.django_db
def test_a_market_has_work_from_a_bid_to_its_settlement():
    zone = market.zone()
    node = market.node(zone)
    assert not beat.has_work(now=NOW)
    job_builders.job(zone, (0, node))
    assert beat.has_work(now=NOW)
    Job.objects.update(status=JobStatus.SUCCEEDED, finished_at=NOW)
    assert beat.has_work(now=NOW)
    Job.objects.update(settled_at=NOW)
    assert beat.has_work(now=NOW + timedelta(seconds=119))
    assert not beat.has_work(now=NOW + timedelta(seconds=120))


@pytest.mark.django_db
def test_durable_work_is_work_once_it_is_due():
    enqueue_work(NewWork(DELIVER, "one", NOW + timedelta(seconds=5)))
    assert not beat.has_work(now=NOW)
    assert beat.has_work(now=NOW + timedelta(seconds=5))


def test_a_clock_that_was_held_up_takes_its_turn_again_once_no_other_has_it(monkeypatch):
    messages = Redis.from_url(settings.REDIS_URL)
    first, other = (
        messages.lock("test-beat", timeout=10, sleep=0.01, thread_local=False) for _ in range(2)
    )
    scheduler = StillScheduler()
    scheduler.lock = first

    def tick(self: StillScheduler) -> float:
        self.lock.extend(10)
        return 1.0

    monkeypatch.setattr(RedBeatScheduler, "tick", tick)
    try:
        assert first.acquire(blocking=False)
        assert scheduler.tick() == 1.0
        messages.delete("test-beat")  # Its time was over,
        assert other.acquire(blocking=False)  # and another clock began.
        waiting = threading.Thread(target=scheduler.tick)
        waiting.start()
        assert not first.owned()
        assert other.owned()
        other.release()
        waiting.join(30)
        assert first.owned()
        assert scheduler.tick() == 1.0
    finally:
        messages.delete("test-beat")
        messages.close()
