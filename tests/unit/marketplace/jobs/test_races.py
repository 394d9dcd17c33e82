"""The same thing at the same moment, on connections of its own: it counts once."""

from __future__ import annotations

import io

import pytest
from django.db import transaction

from marketplace.jobs.locks import lock_job, lock_open_slice
from marketplace.jobs.models import (
    Artifact,
    Checkpoint,
    Job,
    JobEvent,
    JobStatus,
    MetricPoint,
    NodePlan,
    Slice,
    SliceStatus,
)
from marketplace.jobs.services import (
    LeaseLost,
    cancel_job,
    dispatch_slots,
    finish_slice,
    record_progress,
    store_adapter,
    store_checkpoint,
    sweep_leases,
)
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from tests.job_builders import SLOT, at
from tests.unit.marketplace.common.threads import at_once
from workers.protocol.reports import ProgressReply
from workers.protocol.reports import SliceEnd as Ended

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def running():
    zone = market.zone()
    node = market.node(zone)
    job = build.job(zone, (0, node), (1, node))
    dispatch_slots(now=NOW)
    return job, node, build.lease(job)


def assert_seqs_rise(job: Job) -> None:
    seqs = list(JobEvent.objects.filter(job=job).order_by("pk").values_list("seq", flat=True))
    assert seqs == sorted(set(seqs))


def test_two_dispatchers_at_once_make_one_plan():
    zone = market.zone()
    node = market.node(zone)
    jobs = [build.job(zone, (0, node)) for _ in range(3)]

    results = at_once([lambda: dispatch_slots(now=NOW)] * 4)

    assert [r for r in results if isinstance(r, Exception)] == []
    assert sorted(started for r in results for started in r.started) == sorted(
        job.pk for job in jobs
    )
    assert NodePlan.objects.count() == 1
    assert Slice.objects.count() == 3


def test_two_results_for_one_lease_at_once_count_once(running):
    job, node, held = running
    finished = build.result(held, Ended.FINISHED)
    store_adapter(
        node=node,
        lease_token=held.lease_token,
        content=io.BytesIO(build.adapter_file()),
        now=at(1),
    )
    results = at_once([lambda: finish_slice(node=node, result=finished, now=at(2))] * 4)
    assert sorted(result.repeated for result in results) == [False, True, True, True]
    assert {result.status for result in results} == {JobStatus.SUCCEEDED}
    assert JobEvent.objects.filter(job=job, kind="succeeded").count() == 1
    assert_seqs_rise(job)


def test_of_two_different_results_at_once_one_counts(running):
    job, node, held = running
    paused = build.result(held, Ended.PAUSED, step=3)
    other = build.result(held, Ended.PAUSED, step=4)
    results = at_once(
        [
            lambda: finish_slice(node=node, result=paused, now=at(2)),
            lambda: finish_slice(node=node, result=other, now=at(2)),
        ]
    )
    assert sum(isinstance(result, LeaseLost) for result in results) == 1
    assert Job.objects.get(pk=job.pk).status == JobStatus.QUEUED
    assert JobEvent.objects.filter(job=job, kind="paused").count() == 1


def test_the_same_report_at_once_is_kept_once(running):
    job, node, held = running
    report = build.report(held, *[build.event(seq, step=seq) for seq in range(1, 6)])
    replies = at_once([lambda: record_progress(node=node, report=report, now=at(1))] * 4)
    assert {reply.last_seq for reply in replies} == {5}
    assert MetricPoint.objects.filter(job=job).count() == 5
    assert Job.objects.get(pk=job.pk).seq == 2 + 1


def test_a_report_and_the_leases_end_at_once_leave_either_all_or_nothing(running):
    job, node, held = running
    expired = held.lease_expires_at
    report = build.report(held, build.event(1, step=4))
    reply, lost = at_once(
        [
            lambda: record_progress(node=node, report=report, now=at(19)),
            lambda: sweep_leases(now=expired),
        ]
    )
    held.refresh_from_db()
    job.refresh_from_db()
    if held.status == SliceStatus.LOST and reply == ProgressReply(keep_running=False):
        assert (MetricPoint.objects.count(), lost) == (0, (job.pk,))
    else:
        # The report came first: it renewed the lease, so nothing was lost.
        assert reply.keep_running
        assert (MetricPoint.objects.count(), lost, held.status) == (1, (), SliceStatus.OPEN)
        assert held.lease_expires_at > expired
    assert_seqs_rise(job)


def test_two_sweeps_at_once_lose_a_lease_once(running):
    job, _, held = running
    lost = at_once([lambda: sweep_leases(now=held.lease_expires_at)] * 3)
    assert sorted(lost) == [(), (), (job.pk,)]
    assert Job.objects.get(pk=job.pk).system_faults == 1


def test_the_same_checkpoint_at_once_is_stored_once(running, tmp_path, settings):
    settings.MEDIA_ROOT = tmp_path
    job, node, held = running

    def store() -> Checkpoint:
        return store_checkpoint(
            node=node,
            lease_token=held.lease_token,
            step=3,
            content=io.BytesIO(build.safetensors()),
            now=at(1),
        )

    stored = at_once([store] * 3)
    assert len({checkpoint.pk for checkpoint in stored}) == 1
    checkpoint = Checkpoint.objects.get(job=job)
    assert [file.name for file in (tmp_path / "jobs" / job.pk / "checkpoints").iterdir()] == [
        checkpoint.file.name.rpartition("/")[2]
    ]


def test_a_result_and_a_cancellation_at_once_end_the_job_once(running):
    job, node, held = running
    store_adapter(
        node=node,
        lease_token=held.lease_token,
        content=io.BytesIO(build.adapter_file()),
        now=at(1),
    )
    at_once(
        [
            lambda: finish_slice(node=node, result=build.result(held, Ended.FINISHED), now=at(2)),
            lambda: cancel_job(job=job, cancelled_by=None, now=at(2)),
        ]
    )
    job.refresh_from_db()
    held.refresh_from_db()
    ends = JobEvent.objects.filter(job=job, kind__in=["succeeded", "cancelled"])
    assert [event.kind for event in ends] == [job.status]
    expected = {"succeeded": SliceStatus.FINISHED, "cancelled": SliceStatus.REVOKED}
    assert held.status == expected[job.status]
    assert Artifact.objects.filter(job=job).count() == 1


def test_a_bid_opened_twice_at_once_has_one_job():
    zone = market.zone()
    node = market.node(zone)
    owner = builders.organisation()
    data = market.dataset(owner, zone)
    opened = at_once(
        [lambda: build.job(zone, (0, node), organisation=owner, dataset=data, bid_id="bid_1")] * 3
    )
    assert sorted(type(result).__name__ for result in opened) == [
        *("IntegrityError", "IntegrityError", "Job")
    ]
    assert JobEvent.objects.count() == 1


def test_leases_are_extended_around_a_job_that_somebody_holds():
    """Who plans a job again holds it and asks for its slice: dispatch must not hold that."""
    zone = market.zone()
    node = market.node(zone)
    held, free = (build.job(zone, (0, node), (1, node), (2, node)) for _ in range(2))
    dispatch_slots(now=NOW)
    with transaction.atomic():
        lock_job(held.pk)
        [done] = at_once([lambda: dispatch_slots(now=at(10))])
        assert not isinstance(done, Exception), done
        # Dispatch took nothing that this transaction still has to ask for.
        assert lock_open_slice(held) is not None
    assert (build.lease(held).last_slot, build.lease(free).last_slot) == (SLOT, SLOT + 1)
    dispatch_slots(now=at(11))
    assert build.lease(held).last_slot == SLOT + 1
