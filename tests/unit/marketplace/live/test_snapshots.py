"""A snapshot and the events after it are the same as a later snapshot."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.common import events as published
from marketplace.common.errors import NotFound
from marketplace.jobs.models import Job
from marketplace.jobs.services import (
    cancel_job,
    dispatch_slots,
    finish_slice,
    record_progress,
    replace_job_cells,
    request_job_replan,
    store_adapter,
    store_checkpoint,
    sweep_leases,
)
from marketplace.live import snapshots
from scheduler.types import Cell
from tests import builders, market_builders
from tests import job_builders as build
from tests.builders import NOW
from tests.job_builders import at
from tests.unit.marketplace.live.stream_state import apply_job_event, apply_market_event
from workers.protocol.reports import Fault
from workers.protocol.reports import SliceEnd as Ended

pytestmark = pytest.mark.django_db

Heard = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    """Every event as it went out, with its stream."""
    sent: Heard = []

    class Layer:
        async def group_send(self, stream: str, message: dict[str, Any]) -> None:
            sent.append((stream, json.loads(json.dumps(message["event"]))))

    monkeypatch.setattr(published, "get_channel_layer", Layer)
    return sent


def snapshot_of(job: Job) -> dict[str, Any]:
    owner = builders.owner_of(job.organisation)
    return json.loads(json.dumps(snapshots.load_job_snapshot(watcher=owner, job_id=job.pk)))


class Ran:
    """A job on two nodes, and the snapshot a browser took when it opened the page."""

    def __init__(self) -> None:
        self.zone = market_builders.zone()
        self.node = market_builders.node(self.zone)
        self.other = market_builders.node(self.zone)
        self.job = build.job(self.zone, (0, self.node), (1, self.node), (2, self.other))
        self.first = snapshot_of(self.job)
        dispatch_slots(now=NOW)
        self.report(1, 2, 3)

    def report(self, *steps: int, now: Any = NOW, **figures: Any) -> None:
        held = build.lease(self.job)
        fresh = [
            build.event(held.last_seq + number, step=step, train_loss=2.0 / step, **figures)
            for number, step in enumerate(steps, start=1)
        ]
        reply = record_progress(node=held.node, report=build.report(held, *fresh), now=now)
        assert reply.keep_running


SCENES: dict[str, Callable[[Ran], object]] = {}


def scene(play: Callable[[Ran], object]) -> Callable[[Ran], object]:
    SCENES[play.__name__.replace("_", " ")] = play
    return play


@scene
def it_trains(ran: Ran) -> None:
    ran.report(4, 5, learning_rate=1e-4, grad_norm=0.4, log=("step 5",))
    ran.report(6, valid_loss=1.5)
    held = build.lease(ran.job)
    store_checkpoint(
        node=ran.node,
        lease_token=held.lease_token,
        step=6,
        content=io.BytesIO(build.safetensors()),
        now=at(5),
    )


@scene
def it_is_cancelled(ran: Ran) -> None:
    cancel_job(job=ran.job, cancelled_by=None, now=at(4))


@scene
def it_is_blamed_on_its_input(ran: Ran) -> None:
    held = build.lease(ran.job)
    result = build.result(held, Ended.FAILED, step=4, fault=Fault.USER, reason="Row 3 is empty.")
    finish_slice(node=ran.node, result=result, now=at(4))


@scene
def its_node_is_lost_and_it_goes_on_elsewhere(ran: Ran) -> None:
    sweep_leases(now=at(400))
    request_job_replan(job=ran.job, reason="The node is gone.", now=at(401))
    replace_job_cells(
        job=ran.job,
        cells=[Cell(slot=build.SLOT + 41, node=ran.other.pk)],
        reason="Moved.",
        now=at(402),
    )


@scene
def it_finishes(ran: Ran) -> None:
    held = build.lease(ran.job)
    ran.report(12)
    store_adapter(
        node=ran.node,
        lease_token=held.lease_token,
        content=io.BytesIO(build.adapter_file()),
        now=at(6),
    )
    result = build.result(held, Ended.FINISHED, valid_loss_before=2.0, valid_loss_after=1.0)
    finish_slice(node=ran.node, result=result, now=at(6))


@pytest.mark.parametrize("name", SCENES)
def test_a_browser_that_heard_everything_knows_what_a_fresh_one_reads(
    name: str, heard: Heard, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        ran = Ran()
        SCENES[name](ran)
    known = ran.first
    for stream, event in heard:
        if stream == f"job.{ran.job.pk}":
            known = apply_job_event(known, event)
    assert known == snapshot_of(ran.job)
    assert known["seq"] > ran.first["seq"]


def test_events_come_numbered_without_a_gap(
    heard: Heard, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        ran = Ran()
        SCENES["it finishes"](ran)
    numbers = [event["seq"] for stream, event in heard if stream == f"job.{ran.job.pk}"]
    assert len(numbers) > 3
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_events_a_snapshot_holds_already_change_nothing(
    heard: Heard, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        ran = Ran()
        SCENES["it trains"](ran)
    fresh = snapshot_of(ran.job)
    again = fresh
    for _, event in heard:
        again = apply_job_event(again, event)
    assert again == fresh


def test_a_market_followed_from_its_snapshot_is_the_market(
    heard: Heard, django_capture_on_commit_callbacks: Any
) -> None:
    zone = market_builders.zone()
    market_builders.node(zone)
    owner = builders.organisation(usd="100")
    first = json.loads(json.dumps(snapshots.load_market_snapshot(zone_name=zone.name)))
    with django_capture_on_commit_callbacks(execute=True):
        for price in (5_000_000, 1, 5_000_000):
            market_builders.bid(owner, zone, price_micros=price)
            decide_pending_bids(zone=zone, now=NOW, limit=10)
        for _ in range(9):
            market_builders.bid(owner, zone, price_micros=2)
        decide_pending_bids(zone=zone, now=NOW, limit=20)
    known = first
    for stream, event in heard:
        if stream == f"market.{zone.name}":
            known = apply_market_event(known, event)
    fresh = json.loads(json.dumps(snapshots.load_market_snapshot(zone_name=zone.name)))
    assert known == fresh
    assert len(fresh["decisions"]) == snapshots.DECISIONS_SHOWN
    assert [decision["admitted"] for decision in fresh["decisions"]] == [False] * 8


def test_a_decision_shows_others_nothing_of_the_bids_own_amount() -> None:
    zone = market_builders.zone()
    market_builders.node(zone)
    market_builders.bid(builders.organisation(usd="100"), zone, price_micros=7_654_321)
    decide_pending_bids(zone=zone, now=NOW, limit=10)
    assert "7654321" not in json.dumps(snapshots.load_market_snapshot(zone_name=zone.name))


def test_a_job_of_somebody_else_is_as_unknown_as_one_that_is_not() -> None:
    job = Ran().job
    stranger = builders.user()
    for job_id in (job.pk, "ftjob-none", "x"):
        with pytest.raises(NotFound) as refusal:
            snapshots.load_job_snapshot(watcher=stranger, job_id=job_id)
        assert refusal.value.code == "unknown_job"
    with pytest.raises(NotFound):
        snapshots.load_job_snapshot(watcher=None, job_id=job.pk)
    seen = snapshots.load_job_snapshot(watcher=builders.operator(), job_id=job.pk)
    assert seen["job_id"] == job.pk
