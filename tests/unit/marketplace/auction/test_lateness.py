"""Why jobs are late: each part of a job's way is named when it is behind, and no other."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from marketplace.auction.lateness import HANDLED_WITHIN, HEARD_WITHIN, SOON, explain_lateness
from marketplace.auction.models import Bid
from marketplace.auction.probes import LANE_TASK, WORKER_TASK
from marketplace.common import heartbeats
from marketplace.common.models import Heartbeat
from marketplace.config import celery
from marketplace.jobs.models import Job, JobStatus, NodePlan, Slice
from marketplace.jobs.services import dispatch_slots
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from tests.pages import read_text

pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)


@pytest.fixture
def job(monkeypatch) -> Job:
    """One that trains, in a market in which all is well."""
    monkeypatch.setattr("marketplace.common.clock.now", lambda: NOW)
    zone = market.zone()
    made = build.job(zone, (0, market.node(zone)))
    dispatch_slots(now=NOW)
    NodePlan.objects.update(taken_at=NOW)
    Job.objects.update(progressed_at=NOW)
    builders.beat_everything()
    made.refresh_from_db()
    return made


def list_behind() -> list[str]:
    return [stage.label for stage in explain_lateness(now=NOW).stages if not stage.is_ok]


def change(**fields: object) -> None:
    Job.objects.update(**fields)


def test_nothing_is_behind_in_a_market_in_which_all_is_well(job):
    found = explain_lateness(now=NOW)
    assert (found.active, found.late, found.will_be_late, found.jobs) == (1, 0, 0, ())
    assert found.answer == "No job is late, and every part of a job's way is on time."


def test_a_job_that_ends_late_though_nothing_is_behind_is_counted(job):
    change(deadline_at=NOW + SECOND, finish_planned_at=NOW + 2 * SECOND)
    found = explain_lateness(now=NOW)
    assert (found.late, found.will_be_late) == (0, 1)
    assert found.answer == (
        "1 of 1 jobs are late or will be. Every part of a job's way is on time now."
    )
    assert [late.why for late in found.jobs] == [
        "It trains as planned; its plan ends after the deadline."
    ]
    change(deadline_at=NOW - SECOND)
    found = explain_lateness(now=NOW)
    assert (found.late, found.will_be_late) == (1, 0)


@pytest.mark.parametrize(("task", "queue"), [(LANE_TASK, "lane"), (WORKER_TASK, "default")])
def test_a_queue_that_nobody_takes_and_one_that_is_long_are_named(job, task, queue):
    Heartbeat.objects.filter(task=task).update(lag_s=SOON.total_seconds())
    assert list_behind() == []
    Heartbeat.objects.filter(task=task).update(lag_s=SOON.total_seconds() + 0.1)
    assert list_behind() == [f"Tasks of the queue {queue}"]
    Heartbeat.objects.filter(task=task).update(lag_s=None, ok_at=NOW - timedelta(minutes=5))
    assert list_behind() == [f"Tasks of the queue {queue}"]


def test_a_bid_without_an_answer_is_named(job):
    waiting = market.bid(builders.organisation(usd="10"), job.zone)
    Bid.objects.filter(pk=waiting.pk).update(created_at=NOW - 15 * SECOND)
    assert list_behind() == []
    Bid.objects.filter(pk=waiting.pk).update(created_at=NOW - 16 * SECOND)
    assert list_behind() == ["Bids without an answer"]


def test_data_are_behind_only_where_a_job_ends_late_for_them(job):
    Slice.objects.all().delete()
    change(status=JobStatus.QUEUED, awaits_data=True, cells=[])
    assert list_behind() == []
    change(deadline_at=NOW - SECOND)
    assert list_behind() == ["Jobs without their data"]
    assert explain_lateness(now=NOW).jobs[0].why == "Its data are not prepared yet."


def test_a_job_that_finds_no_cells_is_named(job):
    change(needs_replan=True, replan_reason="Its node left.", replan_wanted_at=NOW - HANDLED_WITHIN)
    assert list_behind() == []
    change(replan_wanted_at=NOW - HANDLED_WITHIN - SECOND)
    assert list_behind() == ["Jobs without cells"]
    assert explain_lateness(now=NOW).jobs[0].why == "It waits for new cells: Its node left."


def test_a_cell_without_a_lease_is_named_and_so_is_a_plan_that_no_node_fetches(job):
    slot_s = job.zone.slot_s
    job.zone.__class__.objects.update(epoch_at=NOW - SOON - SECOND, slot_s=10 * slot_s)
    Slice.objects.update(status="lost", closed_at=NOW)
    change(status=JobStatus.QUEUED, cells=[[0, job.cells[0][1]]])
    assert list_behind() == ["Jobs with a cell and no lease"]
    Slice.objects.update(status="open", closed_at=None)
    NodePlan.objects.update(taken_at=None, made_at=NOW - SOON, ends_at=NOW + SECOND)
    assert list_behind() == []
    NodePlan.objects.update(made_at=NOW - SOON - SECOND)
    assert list_behind() == ["Plans that no node has fetched"]


def test_a_node_that_reports_nothing_and_one_that_is_slow_are_told_apart(job):
    held = Slice.objects.get()
    change(progressed_at=NOW - HEARD_WITHIN - SECOND, deadline_at=NOW - SECOND)
    assert list_behind() == []  # It had no time yet.
    Slice.objects.update(opened_at=NOW - HEARD_WITHIN - SECOND)
    assert list_behind() == ["Leases under which nothing is reported"]
    assert explain_lateness(now=NOW).jobs[0].why == "Its node reports nothing."
    change(progressed_at=NOW, eta_at=NOW + timedelta(hours=2), status=JobStatus.RUNNING)
    assert held.lease_expires_at > NOW
    assert list_behind() == ["Jobs too slow for their deadline"]
    assert explain_lateness(now=NOW).jobs[0].why == "It trains more slowly than it was sold for."


def test_an_ended_job_whose_money_does_not_move_is_named(job):
    Slice.objects.update(status="finished", closed_at=NOW)
    change(status=JobStatus.SUCCEEDED, finished_at=NOW - HANDLED_WITHIN)
    assert list_behind() == []
    change(finished_at=NOW - HANDLED_WITHIN - SECOND)
    assert list_behind() == ["Ended jobs without a settlement"]


def test_the_first_part_that_is_behind_is_the_answer_on_the_page_and_in_the_doctor(
    job, client, capsys
):
    change(deadline_at=NOW - SECOND, progressed_at=NOW - HEARD_WITHIN - SECOND)
    Slice.objects.update(opened_at=NOW - HEARD_WITHIN - SECOND)
    Heartbeat.objects.filter(task=WORKER_TASK).update(lag_s=90.0)
    answer = (
        "1 of 1 jobs are late or will be. Tasks of the queue default come first: "
        "no process takes the queue default, or its processes cannot keep up."
    )
    assert explain_lateness(now=NOW).answer == answer
    client.force_login(builders.operator())
    page = read_text(client.get("/operator/health"))
    assert answer in page
    assert "Its node reports nothing." in page
    assert "Leases under which nothing is reported" in page
    with pytest.raises(CommandError):
        call_command("doctor")
    said = capsys.readouterr().out
    assert f"BAD  Late jobs: {answer}" in said
    assert "BAD  Tasks of the queue default: 1 of" in said
    assert f"ok   Job {job.pk} of {job.zone.name}: Its node reports nothing." in said


def test_others_than_operators_do_not_see_the_page(client):
    client.force_login(builders.user())
    assert client.get("/operator/health").status_code in (302, 403, 404)


def test_how_long_a_task_waited_for_a_worker_is_written_down(monkeypatch):
    heartbeats._written.clear()
    times = iter((NOW, NOW + timedelta(seconds=7.5), NOW + timedelta(seconds=9)))
    monkeypatch.setattr("marketplace.common.clock.now", lambda: next(times))
    celery.app.loader.import_default_modules()
    task, headers = celery.app.tasks[WORKER_TASK], {}
    # By name: others who hear these signals close the connection, and with it this test's.
    celery._note_when_sent(headers)
    task.push_request(headers=None, is_eager=False, **headers)
    try:
        celery._note_how_long_it_waited(task)
        celery._record_success(task)
    finally:
        task.pop_request()
    assert Heartbeat.objects.get(task=WORKER_TASK).lag_s == 7.5
