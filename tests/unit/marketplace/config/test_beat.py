"""The clock sends little while nothing is to be done, and all of it once something is."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import time_machine
from celery import Celery
from django.conf import settings
from redbeat import RedBeatScheduler
from redis import Redis

from marketplace.auction.probes import LANE_TASK, WORKER_TASK
from marketplace.common import clock, heartbeats
from marketplace.common.durable.services import NewWork, enqueue_work
from marketplace.common.models import Heartbeat
from marketplace.config import beat
from marketplace.jobs.models import Job, JobStatus
from marketplace.webhooks.durable import DELIVER
from tests import job_builders
from tests import market_builders as market
from tests.builders import NOW


class StillScheduler(beat.RestingScheduler):
    """One that sends nothing: ``sent`` counts what it would have sent in ``ticks`` turns."""

    sent: Counter[str]
    ticks: int


@pytest.fixture
def travel() -> Iterator[time_machine.Traveller]:
    with time_machine.travel(NOW, tick=False) as made:
        yield made


@pytest.fixture
def scheduler(
    travel: time_machine.Traveller, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StillScheduler]:
    made_up = Celery("test-beat", set_as_current=False)
    prefix = f"test-beat-{uuid4()}:"
    made_up.conf.update(
        enable_utc=True,
        beat_schedule=settings.CELERY_BEAT_SCHEDULE,
        redbeat_key_prefix=prefix,
        redbeat_redis_url=settings.REDIS_URL,
    )

    def send(self: StillScheduler, entry: Any, **options: Any) -> None:
        self.reserve(entry)
        self.sent[entry.task] += 1

    monkeypatch.setattr(RedBeatScheduler, "apply_async", send)
    monkeypatch.setattr(beat.time, "monotonic", lambda: clock.now().timestamp())
    monkeypatch.setattr(beat, "close_old_connections", lambda: None)
    monkeypatch.setattr(heartbeats, "_written", {})
    made = StillScheduler(made_up)
    made.sent, made.ticks, made.lock_key = Counter(), 0, None
    monkeypatch.setattr(type(made), "producer", None)
    yield made
    with Redis.from_url(settings.REDIS_URL) as messages:
        messages.delete(*messages.scan_iter(f"{prefix}*"))


def run_minute(scheduler: StillScheduler, travel: time_machine.Traveller) -> Counter[str]:
    """What is sent in a minute."""
    scheduler.sent.clear()
    scheduler.ticks = 0
    ends = clock.now() + timedelta(minutes=1)
    while clock.now() < ends:
        # A thousandth of a second more than it asks to wait, as a turn takes.
        travel.shift(min(scheduler.tick(), scheduler.max_interval) + 0.001)
        scheduler.ticks += 1
    return scheduler.sent


def test_an_idle_house_sends_at_most_sixty_tasks_a_minute(scheduler, travel, monkeypatch):
    asked: list[datetime] = []
    rested: list[Collection[str]] = []

    def has_work(*, now: datetime) -> bool:
        asked.append(now)
        return False

    monkeypatch.setattr(beat, "has_work", has_work)
    monkeypatch.setattr(heartbeats, "record_rest", lambda tasks, now: rested.append(tasks))
    run_minute(scheduler, travel)
    sent = run_minute(scheduler, travel)
    assert sum(sent.values()) <= 60
    assert scheduler.ticks <= 60
    assert sent["auction.sweep"] == 10
    # What shows whether workers and lanes live.
    assert {LANE_TASK, WORKER_TASK} <= set(beat.REST_EVERY_S_OF)
    # Every task still comes, those of more than a minute at their own time.
    schedule = settings.CELERY_BEAT_SCHEDULE.values()
    assert set(sent) == {entry["task"] for entry in schedule if entry["schedule"] <= 60}
    for _ in range(4):
        later = run_minute(scheduler, travel)
    assert {"payments.events_fetch", "tiers.profits_sum"} <= set(later)
    assert len(asked) <= 360
    # What comes less often is not said to rest: its own runs show that it is not late.
    assert set(rested[0]) == {
        entry["task"]
        for entry in schedule
        if entry["schedule"] < 60 and entry["task"] not in beat.REST_EVERY_S_OF
    }


def test_work_brings_every_task_at_its_own_pace_from_the_next_second_on(
    scheduler, travel, monkeypatch
):
    is_busy = False
    monkeypatch.setattr(beat, "has_work", lambda now: is_busy)
    monkeypatch.setattr(heartbeats, "record_rest", lambda tasks, now: None)
    run_minute(scheduler, travel)
    is_busy = True
    scheduler.sent.clear()
    scheduler.tick()
    schedule = settings.CELERY_BEAT_SCHEDULE.values()
    often = {entry["task"] for entry in schedule if entry["schedule"] <= 5}
    assert set(scheduler.sent) >= often - beat.REST_EVERY_S_OF.keys()
    sent = run_minute(scheduler, travel)
    for entry in schedule:
        if entry["schedule"] <= 60:
            assert sent[entry["task"]] >= 60 // entry["schedule"] * 0.9 - 1


@pytest.mark.django_db
def test_a_task_that_has_nothing_to_do_is_not_late_and_one_that_shows_life_says_so_itself(
    scheduler, travel
):
    # Nothing is said where a task never ran, or where its last run failed.
    scheduler.tick()
    assert not Heartbeat.objects.exists()
    for task in ("jobs.leases_sweep", "auction.sweep", "jobs.delete_unretained"):
        heartbeats.record_success(task, now=NOW - timedelta(minutes=1))
    heartbeats.record_failure("tiers.tick", "ValueError: x", now=NOW)
    travel.shift(heartbeats.WRITE_EVERY_S)
    scheduler.tick()
    rows = Heartbeat.objects.order_by("task").values_list("task", "ok_at", "error")
    assert list(rows) == [
        ("auction.sweep", NOW - timedelta(minutes=1), ""),
        ("jobs.delete_unretained", NOW - timedelta(minutes=1), ""),
        ("jobs.leases_sweep", clock.now(), ""),
        ("tiers.tick", None, "ValueError: x"),
    ]


def test_where_the_database_does_not_answer_tasks_are_sent(scheduler, travel, monkeypatch):
    def fail(*, now: datetime) -> bool:
        asked.append(now)
        raise OSError

    asked: list[datetime] = []
    monkeypatch.setattr(beat, "has_work", fail)
    for _ in range(3):
        travel.shift(2.5)
        scheduler.tick()
    assert scheduler.sent["tiers.tick"] == 3
    # Not at every turn: each may wait for long.
    assert asked == [NOW + timedelta(seconds=2.5)]


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


def test_a_clock_that_was_held_up_takes_its_turn_again_once_no_other_has_it(scheduler, monkeypatch):
    messages = Redis.from_url(settings.REDIS_URL)
    first, other = (
        messages.lock("test-beat", timeout=10, sleep=0.01, thread_local=False) for _ in range(2)
    )
    scheduler.lock = first

    def tick(self: StillScheduler) -> float:
        first.extend(10)
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
