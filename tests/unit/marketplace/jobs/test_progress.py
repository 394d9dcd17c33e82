"""What running jobs report, and what they are told."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from marketplace.jobs.models import EventKind, Job, MetricPoint, SliceStatus
from marketplace.jobs.selectors import load_metric_series
from marketplace.jobs.services import (
    cancel_job,
    dispatch_slots,
    progress,
    record_progress,
    replace_job_cells,
    sweep_leases,
)
from scheduler.types import Cell
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from tests.job_builders import at
from workers.protocol.reports import ProgressReply, ProgressReport

pytestmark = pytest.mark.django_db


@pytest.fixture
def running():
    zone = market.zone()
    node = market.node(zone)
    job = build.job(zone, (0, node), (1, node))
    dispatch_slots(now=NOW)
    return job, node, build.lease(job)


def trace(job: Job) -> tuple[int, int, int]:
    """What a refused report must leave as it was."""
    job.refresh_from_db()
    return job.seq, job.step, MetricPoint.objects.filter(job=job).count()


def test_a_report_is_kept_and_renews_the_lease(running):
    job, node, held = running
    events = [
        build.event(1, step=0, valid_loss=3.0),
        build.event(2, step=2, train_loss=2.5, learning_rate=1e-3, eta_s=4.0, log=("hello",)),
    ]

    reply = record_progress(node=node, report=build.report(held, *events), now=at(12))

    job.refresh_from_db()
    assert reply == ProgressReply(
        keep_running=True,
        lease_expires_at=at(20 + job.zone.lease_grace_s).timestamp(),
        last_seq=2,
    )
    assert (job.step, job.total_steps, job.samples_done) == (2, 12, 16)
    assert (job.train_loss, job.first_train_loss) == (2.5, 2.5)
    # Measured before training; nothing is known yet of after.
    assert (job.valid_loss_before, job.valid_loss) == (3.0, None)
    assert (job.learning_rate, job.eta_at, job.progressed_at) == (1e-3, at(16), at(12))
    first, second = MetricPoint.objects.filter(job=job).order_by("seq")
    assert (first.seq, first.step, first.valid_loss, first.train_loss) == (1, 0, 3.0, None)
    assert (second.step, second.log) == (2, ["hello"])
    assert second.at == datetime.fromtimestamp(NOW.timestamp() + 2, UTC)


def test_the_same_report_again_changes_nothing(running):
    job, node, held = running
    report = build.report(held, build.event(1, step=1), build.event(2, step=2))
    first = record_progress(node=node, report=report, now=at(1))
    before = trace(job)

    again = record_progress(node=node, report=report, now=at(1))

    assert again == first
    assert trace(job) == before


def test_of_a_report_that_overlaps_only_the_new_events_are_kept(running):
    _, node, held = running
    record_progress(
        node=node,
        report=build.report(held, build.event(1, step=1), build.event(2, step=2)),
        now=at(1),
    )

    reply = record_progress(
        node=node,
        report=build.report(held, build.event(2, step=2), build.event(3, step=3)),
        now=at(2),
    )

    assert reply.last_seq == 3
    assert list(MetricPoint.objects.order_by("seq").values_list("seq", flat=True)) == [1, 2, 3]


def test_each_published_change_takes_the_next_number_of_the_jobs_stream(running, monkeypatch):
    job, node, held = running
    published = []
    monkeypatch.setattr(
        "marketplace.jobs.journal.publish_on_commit",
        lambda *, stream, event: published.append((stream, event)),
    )

    record_progress(node=node, report=build.report(held, build.event(1, step=1)), now=at(1))
    cancel_job(job=job, cancelled_by=None, now=at(2))

    job.refresh_from_db()
    (first_stream, first), (second_stream, second) = published
    assert first_stream == second_stream == f"job.{job.pk}"
    assert (first["seq"], first["type"], second["seq"], second["type"]) == (
        *(3, "progress"),
        *(4, "event"),
    )
    assert job.seq == 4
    assert (first["step"], len(first["points"])) == (1, 1)
    assert second["kind"] == EventKind.CANCELLED


def test_a_report_for_an_unknown_lease_is_told_to_stop(running):
    job, node, _ = running
    before = trace(job)
    report = ProgressReport(lease_token="nobody's", events=(build.event(1, step=1),))
    assert record_progress(node=node, report=report, now=at(1)) == ProgressReply(keep_running=False)
    assert trace(job) == before


def test_a_report_from_another_node_is_told_to_stop_and_leaves_no_trace(running):
    job, _, held = running
    stranger = market.node(job.zone)
    before = trace(job)
    report = build.report(held, build.event(1, step=1))
    assert record_progress(node=stranger, report=report, now=at(1)).keep_running is False
    assert trace(job) == before


def test_a_report_after_the_lease_ran_out_leaves_no_trace(running):
    job, node, held = running
    before = trace(job)
    report = build.report(held, build.event(1, step=1))
    expired = held.lease_expires_at
    assert record_progress(node=node, report=report, now=expired).keep_running is False
    assert trace(job) == before
    held.refresh_from_db()
    assert (held.status, held.last_seq, held.lease_expires_at) == (SliceStatus.OPEN, 0, expired)


def test_a_report_after_the_lease_was_lost_leaves_no_trace(running):
    job, node, held = running
    sweep_leases(now=held.lease_expires_at)
    before = trace(job)
    report = build.report(held, build.event(1, step=1))
    assert record_progress(node=node, report=report, now=at(1)).keep_running is False
    assert trace(job) == before


def test_a_report_of_a_cancelled_job_is_told_to_stop(running):
    job, node, held = running
    cancel_job(job=job, cancelled_by=None, now=at(1))
    report = build.report(held, build.event(1, step=1))
    assert record_progress(node=node, report=report, now=at(2)).keep_running is False


def test_events_with_impossible_counts_are_passed_over(running):
    _, node, held = running
    events = [
        build.event(1, step=-1),
        build.event(2, step=13, total_steps=12),
        build.event(3, step=1, total_steps=2**40),
        build.event(4, step=4),
    ]
    reply = record_progress(node=node, report=build.report(held, *events), now=at(1))
    assert reply.last_seq == 4
    assert list(MetricPoint.objects.values_list("step", flat=True)) == [4]


def test_log_lines_are_cut_to_size(running):
    _, node, held = running
    lines = tuple(f"{number} " + "x" * 1000 for number in range(80)) + ("nul\x00",)
    record_progress(
        node=node, report=build.report(held, build.event(1, step=1, log=lines)), now=at(1)
    )
    log = MetricPoint.objects.get().log
    assert len(log) == 50
    assert log[0] == ("31 " + "x" * 1000)[:500]
    assert log[-1] == "nul\ufffd"


def test_a_nodes_wild_clock_is_replaced_by_ours(running):
    _, node, held = running
    event = build.event(1, step=1)
    wild = ProgressReport(lease_token=held.lease_token, events=(replace(event, at=1e30),))
    record_progress(node=node, report=wild, now=at(1))
    assert MetricPoint.objects.get().at == at(1)


def test_steps_done_again_replace_those_reported_before_in_the_series(running):
    job, node, held = running
    for seq, step in enumerate([1, 2, 3], start=1):
        record_progress(
            node=node, report=build.report(held, build.event(seq, step=step)), now=at(seq)
        )
    sweep_leases(now=held.lease_expires_at)
    job.refresh_from_db()

    replace_job_cells(job=job, cells=[Cell(build.SLOT + 6, node.pk)], reason="again", now=at(60))
    type(node).objects.filter(pk=node.pk).update(last_heartbeat_at=at(60))
    dispatch_slots(now=at(60))
    again = build.lease(job)
    record_progress(node=node, report=build.report(again, build.event(1, step=2)), now=at(61))

    assert [(p.slice_id, p.step) for p in load_metric_series(job)] == [(held.pk, 1), (again.pk, 2)]


def test_what_a_jobs_steps_took_is_its_nodes_speed(running):
    _, node, held = running

    def say(seq: int, step: int, second: float) -> list[float]:
        event = build.event(seq, step=step, samples_per_s=1e9)
        record_progress(node=node, report=build.report(held, event), now=at(second))
        node.refresh_from_db()
        return node.measured_speeds

    assert say(1, 1, 1) == []  # the first of a lease is not counted: it holds loading
    assert say(2, 2, 2) == []
    assert say(3, 4, 19) == []  # too soon to say
    # Six steps of eight rows in forty seconds, by our clock, whatever the node says.
    assert say(4, 8, 42) == [1.2]
    assert node.compute_capacity == 12.0
    assert say(5, 9, 45) == [1.2]


def test_the_speeds_of_a_nodes_jobs_add_up_once_each_is_known():
    zone = market.zone()
    node = market.node(zone)
    jobs = [build.job(zone, *[(slot, node) for slot in range(20)]) for _ in range(2)]
    dispatch_slots(now=NOW)
    held = [build.lease(job) for job in jobs]
    for second, step in ((1, 1), (2, 2), (34, 6)):
        for lease in held:
            event = build.event(second, step=step)
            record_progress(node=node, report=build.report(lease, event), now=at(second))
    node.refresh_from_db()
    # The first one's speed said nothing while the other's was not known.
    assert node.measured_speeds == [2.0]


def test_of_a_long_job_a_chart_gets_points_and_not_every_step(running, monkeypatch):
    _, node, held = running
    monkeypatch.setattr(progress, "POINTS_OF_A_PASS", 3)
    events = [build.event(step, step=step, train_loss=1.0) for step in range(1, 13)]
    events[4] = replace(events[4], log=("a line",))
    events[6] = replace(events[6], valid_loss=0.5)
    record_progress(node=node, report=build.report(held, *events), now=at(1))
    kept = list(MetricPoint.objects.order_by("pk").values_list("step", flat=True))
    # One in four, what was measured or said in between, and the last.
    assert kept == [4, 5, 7, 8, 12]
    assert Job.objects.get().step == 12


def test_however_much_a_node_reports_a_job_has_so_many_points(running, monkeypatch):
    _, node, held = running
    monkeypatch.setattr(progress, "POINTS_MAX", 5)
    for first in (1, 5, 9):
        events = [build.event(seq, step=seq) for seq in range(first, first + 4)]
        record_progress(node=node, report=build.report(held, *events), now=at(1))
    assert MetricPoint.objects.count() == 5
    assert Job.objects.get().step == 12
