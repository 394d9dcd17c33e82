"""Measurements go to Weights & Biases by its own client, against a stand-in of its server."""

from __future__ import annotations

from datetime import timedelta

import pytest

from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.common.durable.kinds import get_kinds
from marketplace.common.durable.run import run_due_work
from marketplace.common.encryption import decrypt_text
from marketplace.common.errors import UserError
from marketplace.common.models import DurableWork
from marketplace.jobs.models import Job, MetricPoint
from marketplace.jobs.services import dispatch_slots
from marketplace.tracking import sending, wandb_client
from marketplace.tracking.models import TrackedRun, TrackingKey, TrackingService
from marketplace.tracking.sending import SEND
from marketplace.tracking.services import remove_tracking_key, set_tracking_key, track_bid
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.wandb_service import run_wandb_service
from workers.protocol.reports import SliceEnd

pytestmark = pytest.mark.django_db(transaction=True)
KEY = "0123456789" * 4
WANDB = TrackingService.WANDB


@pytest.fixture
def service(settings):
    with run_wandb_service() as running:
        settings.WANDB_URL = running.url
        yield running


@pytest.fixture
def job():
    zone, owner = market.zone(), builders.organisation(usd="10")
    market.node(zone)
    bid = market.bid(owner, zone, epochs=3)
    decide_pending_bids(zone=zone, now=NOW)
    starts_at = market.slot_at(zone, 101)
    zone.nodes.update(last_heartbeat_at=starts_at)
    dispatch_slots(now=starts_at)
    set_tracking_key(organisation=owner, service=WANDB, key=KEY, set_by=bid.placed_by, now=NOW)
    assert track_bid(
        bid_id=bid.pk,
        organisation_id=owner.pk,
        service=WANDB,
        project="tone",
        tags=["a"],
        now=NOW,
    )
    return Job.objects.get(bid_id=bid.pk)


def measure(job, step, **values):
    held = market.open_slice(job)
    seq = MetricPoint.objects.filter(slice=held).count() + 1
    MetricPoint.objects.create(
        job=job, slice=held, seq=seq, at=NOW, step=step, epoch=step / 10, **values
    )


def run_sending(at):
    return run_due_work(get_kinds()[SEND], clock=lambda: at)


def send(at=NOW):
    """One batch; the run as it is then."""
    assert run_sending(at) == 1
    return TrackedRun.objects.get()


def test_a_run_grows_with_its_job_ends_with_it_and_tells_no_more_than_it_measured(service, job):
    measure(job, 1, train_loss=2.5)
    measure(job, 2, train_loss=2.25, valid_loss=2.0)
    first = send()
    run = service.runs["tone", job.pk]
    assert run.history == [
        {"_step": 1, "train/epoch": 0.1, "train/loss": 2.5},
        {"_step": 2, "train/epoch": 0.2, "train/loss": 2.25, "valid/loss": 2.0},
    ]
    assert service.keys == {KEY}
    assert run.exit_code is None
    assert (first.sent_step, first.ended_at, first.reason) == (2, None, "")
    assert first.url.endswith(f"/tone/runs/{job.pk}")
    # Not due yet.
    assert run_sending(NOW + timedelta(seconds=29)) == 0

    # A batch whose worker died is sent again and stands there once.
    TrackedRun.objects.update(sent_point=0, sent_step=-1)
    DurableWork.objects.update(due_at=NOW)
    send()
    assert [row["_step"] for row in run.history] == [1, 2]

    # A job that went back to a checkpoint repeats a step.
    measure(job, 2, train_loss=2.25)
    measure(job, 3, train_loss=2.0)
    market.end_slice(job, status=SliceEnd.FINISHED, now=NOW)
    last = send(NOW + timedelta(seconds=30))
    assert [row["_step"] for row in run.history] == [1, 2, 3]
    assert run.exit_code == 0
    assert last.ended_at == NOW + timedelta(seconds=30)
    assert run_sending(NOW + timedelta(days=1)) == 0
    assert not DurableWork.objects.filter(kind=SEND).exists()

    sent, node = b"".join(service.bodies), job.zone.nodes.get()
    secrets = (node.name, node.pk, str(job.price_micros), "/site-packages", job.organisation_id)
    for secret in secrets:
        assert secret.encode() not in sent
    assert b"learning_rate" in sent


def test_a_wrong_key_ends_the_run_with_the_reason_and_the_job_goes_on(service, job):
    service.refuses = True
    measure(job, 1, train_loss=2.5)
    run = send()
    assert run.ended_at == NOW
    assert run.reason.startswith("Weights & Biases: Failed to get resume status")
    assert "invalid api key" in run.reason
    assert KEY not in run.reason
    job.refresh_from_db()
    assert job.status == "running"


def test_a_service_that_is_away_is_tried_again_for_a_day(job, settings, monkeypatch):
    settings.WANDB_URL = "http://127.0.0.1:9"
    monkeypatch.setattr(wandb_client, "SEND_WITHIN_S", 1.0)
    measure(job, 1, train_loss=2.5)
    run = send()
    assert (run.reason, run.ended_at) == ("Weights & Biases did not answer in time.", None)
    assert DurableWork.objects.get().due_at == NOW + timedelta(seconds=30)
    backoff = get_kinds()[SEND].backoff
    waits = [backoff(failures) for failures in range(1, 31)]
    assert timedelta(hours=24) < sum(waits, timedelta()) < timedelta(hours=25)
    assert backoff(31) is None
    DurableWork.objects.update(attempts=30)
    at = NOW + timedelta(days=1)
    run = send(at)
    assert (run.reason, run.ended_at) == ("Weights & Biases did not answer in time.", at)
    assert not DurableWork.objects.exists()


def test_nothing_more_is_sent_once_the_key_is_removed(service, job):
    measure(job, 1, train_loss=2.5)
    remove_tracking_key(organisation=job.organisation, service=WANDB)
    run = send()
    assert (run.ended_at, run.reason) == (NOW, "The key of Weights & Biases was removed.")
    assert service.runs == {}
    assert not track_bid(
        bid_id="other",
        organisation_id=job.organisation_id,
        service=WANDB,
        project="tone",
        now=NOW,
    )


def test_a_key_is_stored_encrypted_and_one_that_cannot_be_is_refused(job):
    stored = TrackingKey.objects.get()
    assert KEY not in stored.key
    assert decrypt_text(stored.key) == KEY
    for wrong in ("", "short", "x" * 201, "with a space in the middle of it", "\0" * 40):
        with pytest.raises(UserError, match="20 characters"):
            set_tracking_key(
                organisation=job.organisation,
                service=WANDB,
                key=wrong,
                set_by=stored.set_by,
                now=NOW,
            )
    assert TrackingKey.objects.get() == stored


def test_a_bid_without_a_job_is_looked_at_more_and_more_rarely_and_then_forgotten(job):
    track_bid(
        bid_id="refused",
        organisation_id=job.organisation_id,
        service=WANDB,
        project="tone",
        now=NOW,
    )
    refused = TrackedRun.objects.get(bid_id="refused")
    DurableWork.objects.exclude(key=refused.pk).delete()
    for age, pause in (
        (timedelta(0), timedelta(seconds=30)),
        (timedelta(minutes=10), timedelta(minutes=1)),
        (sending.UNUSED_FOR - timedelta(seconds=1), timedelta(hours=1)),
    ):
        assert run_sending(NOW + age) == 1
        assert DurableWork.objects.get().due_at == NOW + age + pause
    assert run_sending(NOW + sending.UNUSED_FOR + timedelta(hours=1)) == 1
    assert not DurableWork.objects.exists()
    assert TrackedRun.objects.get().bid_id == job.bid_id
