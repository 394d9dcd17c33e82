"""How slices end, and what becomes of their jobs."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from django.db import transaction

from marketplace.common.errors import UserError
from marketplace.fleet.models import Node, NodeStatus
from marketplace.fleet.services import (
    ask_node_to_leave,
    drain_node,
    lift_node_suspension,
    sweep_offline_nodes,
    undrain_node,
)
from marketplace.jobs.models import EventKind, FaultOf, Job, JobStatus, Slice, SliceStatus
from marketplace.jobs.selectors import list_job_checkpoints
from marketplace.jobs.services import (
    LeaseLost,
    apply_heartbeat,
    cancel_job,
    decide_user_fault,
    delete_job,
    dispatch_slots,
    finish_slice,
    record_progress,
    replace_job_cells,
    store_adapter,
    store_checkpoint,
    sweep_leases,
)
from marketplace.jobs.services.life import close_slice, fail
from marketplace.jobs.transitions import WrongTransition
from marketplace.jobs.work import compute_work_left_share
from scheduler.types import Cell
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from tests.job_builders import SLOT, at
from workers.protocol.messages import Heartbeat, HeartbeatReply
from workers.protocol.reports import Fault
from workers.protocol.reports import SliceEnd as Ended
from workers.protocol.starts import Drop, Start, StartKind

pytestmark = pytest.mark.django_db


@pytest.fixture
def running():
    zone = market.zone()
    node = market.node(zone)
    job = build.job(zone, (0, node), (1, node))
    dispatch_slots(now=NOW)
    return job, node, build.lease(job)


def test_a_lease_ends_once_and_before_its_job(running):
    job, _, held = running
    with transaction.atomic(), pytest.raises(WrongTransition, match="while a node has a lease"):
        fail(job=job, fault=FaultOf.SYSTEM, reason="No.", now=NOW)
    job.refresh_from_db()
    assert (job.status, job.finished_at) == (JobStatus.RUNNING, None)
    close_slice(held, status=SliceStatus.LOST, reason="Silent.", now=NOW, counted_step=0)
    with pytest.raises(WrongTransition, match="cannot go from lost to finished"):
        close_slice(held, status=SliceStatus.FINISHED, reason="", now=NOW, counted_step=0)
    assert Slice.objects.get(pk=held.pk).status == SliceStatus.LOST


def kinds(job: Job) -> list[str]:
    return list(job.events.order_by("seq").values_list("kind", flat=True))


def checkpointed(job, node, held, *, step: int, now):
    record_progress(
        node=node,
        report=build.report(held, build.event(step, step=step, train_loss=2.0)),
        now=now,
    )
    return store_checkpoint(
        node=node,
        lease_token=held.lease_token,
        step=step,
        content=io.BytesIO(build.safetensors(step)),
        now=now,
    )


def test_a_finished_job_succeeds_when_its_adapter_is_stored(running):
    job, node, held = running
    result = build.result(held, Ended.FINISHED, last_train_loss=1.5, trained_tokens=999)
    with pytest.raises(UserError) as refused:
        finish_slice(node=node, result=result, now=at(5))
    assert (refused.value.code, refused.value.status) == ("adapter_missing", 409)
    job.refresh_from_db()
    held.refresh_from_db()
    assert (job.status, job.step, held.status, held.result) == (
        *(JobStatus.RUNNING, 0),
        *(SliceStatus.OPEN, None),
    )

    store_adapter(
        node=node,
        lease_token=held.lease_token,
        content=io.BytesIO(build.adapter_file()),
        now=at(6),
    )
    outcome = finish_slice(node=node, result=result, now=at(7))

    job.refresh_from_db()
    held.refresh_from_db()
    assert (outcome.status, outcome.repeated) == (JobStatus.SUCCEEDED, False)
    assert (job.status, job.finished_at, job.step) == (JobStatus.SUCCEEDED, at(7), 12)
    assert (job.train_loss, job.trained_tokens) == (1.5, 999)
    assert (held.status, held.closed_at) == (SliceStatus.FINISHED, at(7))
    assert kinds(job)[-2:] == [EventKind.ADAPTER_STORED, EventKind.SUCCEEDED]


def test_the_same_result_twice_has_the_same_answer_and_no_second_effect(running):
    job, node, held = running
    result = build.result(held, Ended.PAUSED, step=3)
    first = finish_slice(node=node, result=result, now=at(5))
    seq = Job.objects.get(pk=job.pk).seq

    again = finish_slice(node=node, result=result, now=at(500))

    assert (first.repeated, again.repeated) == (False, True)
    assert again.status == first.status == JobStatus.QUEUED
    assert Job.objects.get(pk=job.pk).seq == seq


def test_another_result_for_an_ended_slice_is_refused(running):
    job, node, held = running
    finish_slice(node=node, result=build.result(held, Ended.PAUSED, step=3), now=at(5))
    with pytest.raises(LeaseLost):
        finish_slice(
            node=node,
            result=build.result(held, Ended.FAILED, step=3, fault=Fault.USER, reason="x"),
            now=at(6),
        )
    assert Job.objects.get(pk=job.pk).status == JobStatus.QUEUED


def test_a_result_after_the_lease_ran_out_changes_nothing(running):
    job, node, held = running
    with pytest.raises(LeaseLost):
        finish_slice(node=node, result=build.result(held, Ended.PAUSED), now=held.lease_expires_at)
    job.refresh_from_db()
    held.refresh_from_db()
    assert (job.status, job.step, held.result) == (JobStatus.RUNNING, 0, None)


@pytest.mark.parametrize(("step", "total_steps"), [(0, 12), (11, 12), (0, 0), (1, 1), (13, 13)])
def test_a_job_is_not_finished_before_all_of_its_work_is_done(running, step, total_steps):
    job, node, held = running
    store_adapter(
        node=node,
        lease_token=held.lease_token,
        content=io.BytesIO(build.adapter_file()),
        now=at(4),
    )
    result = replace(build.result(held, Ended.FINISHED, step=step), total_steps=total_steps)
    with pytest.raises(UserError) as refused:
        finish_slice(node=node, result=result, now=at(5))
    assert (refused.value.code, refused.value.status) == ("work_missing", 409)
    job.refresh_from_db()
    held.refresh_from_db()
    assert (job.status, held.status, held.result) == (JobStatus.RUNNING, SliceStatus.OPEN, None)


def test_a_node_that_blames_the_owner_is_not_believed_before_its_steps_were_trained_again(running):
    job, node, held = running
    checkpointed(job, node, held, step=2, now=at(2))
    reason = "The loss is not a number."
    result = build.result(held, Ended.FAILED, step=6, fault=Fault.USER, reason=reason)
    finish_slice(node=node, result=result, now=at(5))
    job.refresh_from_db()
    assert (job.status, job.fault, job.needs_replan) == (JobStatus.MOVING, "", False)
    assert (job.step, job.awaits_fault_check) == (2, True)
    # It is not held against the node: it may well be right.
    assert Node.objects.get(pk=node.pk).faults_in_row == job.system_faults == 0
    # Its cells stay, and nothing begins in them, now or after them.
    Node.objects.update(last_heartbeat_at=at(100))
    assert [dispatch_slots(now=at(seconds)).started for seconds in (6, 11, 100)] == [()] * 3
    job.refresh_from_db()
    assert (len(job.cells), job.needs_replan) == (2, False)

    for _ in range(2):
        decide_user_fault(slice_id=held.pk, is_confirmed=True, now=at(12))
    job.refresh_from_db()
    assert (job.status, job.fault) == (JobStatus.FAILED, FaultOf.USER)
    assert job.failure_reason == reason
    assert kinds(job)[-1] == EventKind.FAILED


@pytest.mark.parametrize("fault", [Fault.SYSTEM, None])
def test_the_houses_fault_sends_the_job_back_to_its_checkpoint_for_a_new_plan(running, fault):
    job, node, held = running
    checkpointed(job, node, held, step=4, now=at(2))
    finish_slice(
        node=node,
        result=build.result(held, Ended.FAILED, step=8, fault=fault, reason="Out of disk."),
        now=at(5),
    )
    job.refresh_from_db()
    assert (job.status, job.step, job.checkpoint_step) == (JobStatus.MOVING, 4, 4)
    assert (job.needs_replan, job.replan_reason, job.system_faults) == (True, "Out of disk.", 1)
    assert compute_work_left_share(job) == pytest.approx(1 - 4 * 8 / 90)


def test_a_lost_node_costs_a_job_only_the_steps_since_its_checkpoint(running):
    job, node, held = running
    checkpointed(job, node, held, step=4, now=at(2))
    record_progress(node=node, report=build.report(held, build.event(9, step=7)), now=at(3))

    assert sweep_leases(now=at(10 + 29.9)) == ()
    assert sweep_leases(now=at(10 + 30)) == (job.pk,)
    assert sweep_leases(now=at(10 + 31)) == ()

    job.refresh_from_db()
    held.refresh_from_db()
    assert (held.status, job.status, job.needs_replan) == (
        *(SliceStatus.LOST, JobStatus.MOVING),
        True,
    )
    # Its page and its price no longer count what was not saved.
    assert (job.step, job.eta_at) == (4, None)
    lost = job.events.get(kind=EventKind.NODE_LOST)
    assert (lost.data["checkpoint_step"], lost.data["steps_lost"]) == (4, 3)

    Node.objects.filter(pk=node.pk).update(last_heartbeat_at=at(50))
    replace_job_cells(job=job, cells=[Cell(SLOT + 5, node.pk)], reason="again", now=at(50))
    dispatch_slots(now=at(50))
    assert build.lease(job).lease_token != held.lease_token
    started = job.events.filter(kind=EventKind.STARTED).latest("seq")
    assert started.data["step"] == 4


def test_the_leases_of_a_silent_node_are_taken_back_before_they_run_out(running):
    job, node, held = running
    zone = job.zone
    silent = 3 * zone.heartbeat_every_s
    assert sweep_offline_nodes(now=at(silent)) == (node.pk,)
    held.lease_expires_at = at(3600)
    held.save()

    assert sweep_leases(now=at(silent)) == (job.pk,)

    held.refresh_from_db()
    assert (held.status, held.reason) == (SliceStatus.LOST, f"Node {node.name} went silent.")


def test_a_job_is_given_up_after_faults_in_a_row_without_a_new_checkpoint():
    zone = market.zone()
    nodes = [market.node(zone) for _ in range(6)]
    job = build.job(zone, *enumerate(nodes))
    counts = []
    for slot, node in enumerate(nodes):
        now = at(10 * slot)
        Node.objects.filter(pk=node.pk).update(last_heartbeat_at=now)
        dispatch_slots(now=now)
        held = build.lease(job)
        if slot == 1:
            checkpointed(job, node, held, step=2, now=now)  # counts anew from here
        finish_slice(
            node=node,
            result=build.result(held, Ended.FAILED, step=0, fault=Fault.SYSTEM, reason="Broken."),
            now=now,
        )
        job.refresh_from_db()
        counts.append((job.system_faults, job.status))
    assert counts == [
        (1, JobStatus.MOVING),
        (1, JobStatus.MOVING),
        (2, JobStatus.MOVING),
        (3, JobStatus.MOVING),
        (4, JobStatus.MOVING),
        (5, JobStatus.FAILED),
    ]
    assert job.fault == FaultOf.SYSTEM
    assert job.failure_reason == "Given up after 5 failures of ours; the last: Broken."


def test_a_job_pausing_for_a_later_slot_waits_in_the_queue():
    zone = market.zone()
    node = market.node(zone)
    job = build.job(zone, (0, node), (5, node))
    dispatch_slots(now=NOW)
    held = build.lease(job)
    checkpointed(job, node, held, step=3, now=at(9))
    dispatch_slots(now=at(10))

    finish_slice(node=node, result=build.result(held, Ended.PAUSED, step=3), now=at(11))

    job.refresh_from_db()
    assert (job.status, job.step, job.needs_replan) == (JobStatus.QUEUED, 3, False)
    assert kinds(job)[-2:] == [EventKind.MOVING, EventKind.PAUSED]


def test_a_job_finishing_in_the_grace_of_its_last_slot_succeeds(running):
    job, node, held = running
    dispatch_slots(now=at(20))
    store_adapter(
        node=node,
        lease_token=held.lease_token,
        content=io.BytesIO(build.adapter_file()),
        now=at(22),
    )
    finish_slice(node=node, result=build.result(held, Ended.FINISHED), now=at(23))
    job.refresh_from_db()
    assert (job.status, job.needs_replan) == (JobStatus.SUCCEEDED, False)


def beat(node: Node, *leases: str, **more) -> Heartbeat:
    return Heartbeat(node_id=node.pk, at=0.0, lease_tokens=leases, **more)


def test_a_heartbeat_names_the_leases_a_node_must_drop(running):
    job, node, held = running
    on_disk = {"kept_jobs": (job.pk,)}
    kept = apply_heartbeat(node=node, heartbeat=beat(node, held.lease_token, **on_disk), now=at(1))
    cancel_job(job=job, cancelled_by=None, now=at(2))
    dropped = apply_heartbeat(
        node=node, heartbeat=beat(node, held.lease_token, "unknown", **on_disk), now=at(3)
    )
    assert kept == HeartbeatReply()
    assert dropped.revoked == tuple(sorted([held.lease_token, "unknown"]))
    assert dropped.drain is False
    assert dropped.closed_jobs == (job.pk,)


def test_a_node_that_was_away_hears_that_a_job_was_closed_and_deleted_meanwhile(running):
    job, node, _ = running
    cancel_job(job=job, cancelled_by=None, now=at(2))
    delete_job(job=Job.objects.get(pk=job.pk), asked_by=None, now=at(3))
    back = apply_heartbeat(
        node=node, heartbeat=beat(node, kept_jobs=(job.pk, "gone")), now=at(3 * 24 * 3600)
    )
    assert back.closed_jobs == tuple(sorted((job.pk, "gone")))


def test_a_node_that_started_again_loses_the_leases_it_no_longer_names(running):
    job, node, held = running
    apply_heartbeat(node=node, heartbeat=beat(node), now=at(1))  # the plan is on its way
    apply_heartbeat(node=node, heartbeat=beat(node, held.lease_token), now=at(2))
    apply_heartbeat(node=node, heartbeat=beat(node), now=at(3))
    held.refresh_from_db()
    assert held.status == SliceStatus.OPEN
    apply_heartbeat(node=node, heartbeat=beat(node), now=at(4))
    held.refresh_from_db()
    assert (held.status, held.reason) == (
        SliceStatus.LOST,
        f"Node {node.name} started again.",
    )
    dispatch_slots(now=at(5))
    assert build.lease(job).lease_token != held.lease_token


def test_a_lease_named_again_is_not_lost(running):
    _, node, held = running
    for tokens in [(held.lease_token,), (), (held.lease_token,), ()]:
        apply_heartbeat(node=node, heartbeat=beat(node, *tokens), now=at(1))
    held.refresh_from_db()
    assert (held.status, held.heartbeats_missed) == (SliceStatus.OPEN, 1)


def test_a_drained_node_is_not_sent_home_unasked(running):
    job, node, _ = running
    drain_node(node=node, now=at(1))
    cancel_job(job=job, cancelled_by=None, now=at(2))
    reply = apply_heartbeat(node=node, heartbeat=beat(node), now=at(3))
    apply_heartbeat(node=node, heartbeat=beat(node, draining=True), now=at(4))
    assert reply.drain is False
    assert Node.objects.get(pk=node.pk).status == NodeStatus.DRAINING


def test_a_node_that_was_asked_to_leave_goes_when_all_that_was_sold_is_served(running):
    job, node, held = running
    ask_node_to_leave(node=node, now=at(1))
    busy = apply_heartbeat(node=node, heartbeat=beat(node, held.lease_token), now=at(2))
    finish_slice(node=node, result=build.result(held, Ended.PAUSED, step=3), now=at(3))
    still_sold = apply_heartbeat(node=node, heartbeat=beat(node), now=at(4))
    cancel_job(job=job, cancelled_by=None, now=at(5))
    free = apply_heartbeat(node=node, heartbeat=beat(node), now=at(6))
    assert [reply.drain for reply in (busy, still_sold, free)] == [False, False, True]


def test_a_heartbeat_brings_a_silent_node_back_on_sale(running):
    _, node, _ = running
    sweep_offline_nodes(now=at(30))
    assert Node.objects.get(pk=node.pk).status == NodeStatus.OFFLINE
    apply_heartbeat(node=node, heartbeat=beat(node), now=at(31))
    assert Node.objects.get(pk=node.pk).status == NodeStatus.ONLINE


def test_a_heartbeat_with_another_nodes_name_is_refused(running):
    job, node, _ = running
    other = market.node(job.zone)
    with pytest.raises(UserError, match="names another node"):
        apply_heartbeat(node=node, heartbeat=beat(other), now=at(50))
    node.refresh_from_db()
    assert node.last_heartbeat_at == NOW


def test_a_job_is_not_tried_again_on_the_node_that_failed_it_in_the_same_slot(running):
    job, node, held = running
    finish_slice(
        node=node,
        result=build.result(held, Ended.FAILED, step=0, fault=Fault.SYSTEM, reason="Broken."),
        now=at(3),
    )
    assert dispatch_slots(now=at(4)).started == ()
    assert dispatch_slots(now=at(10)).started == (job.pk,)


def test_a_node_that_fails_jobs_in_a_row_is_suspended_and_gives_up_its_other_leases():
    zone = market.zone()
    node = market.node(zone)
    jobs = [build.job(zone, (0, node), (1, node)) for _ in range(4)]
    dispatch_slots(now=NOW)
    for job in jobs[:3]:
        held = build.lease(job)
        finish_slice(
            node=node,
            result=build.result(held, Ended.FAILED, step=0, fault=Fault.SYSTEM, reason="Broken."),
            now=at(3),
        )
    node.refresh_from_db()
    assert (node.status, node.faults_in_row) == (NodeStatus.SUSPENDED, 3)
    assert sweep_leases(now=at(4)) == (jobs[3].pk,)
    apply_heartbeat(node=node, heartbeat=beat(node), now=at(5))
    assert Node.objects.get(pk=node.pk).status == NodeStatus.SUSPENDED
    drain_node(node=node, now=at(6))
    undrain_node(node=node, now=at(6))
    assert Node.objects.get(pk=node.pk).status == NodeStatus.SUSPENDED
    lift_node_suspension(node=node, lifted_by=builders.operator(), now=at(6))
    node.refresh_from_db()
    assert (node.status, node.faults_in_row) == (NodeStatus.ONLINE, 0)


def test_a_checkpoint_shows_that_a_node_works(running):
    job, node, held = running
    Node.objects.filter(pk=node.pk).update(faults_in_row=2)
    checkpointed(job, node, held, step=4, now=at(2))
    assert Node.objects.get(pk=node.pk).faults_in_row == 0


def test_after_three_faults_in_a_row_the_newest_checkpoint_is_set_aside(running):
    job, node, held = running
    older = checkpointed(job, node, held, step=2, now=at(1))
    newer = checkpointed(job, node, held, step=4, now=at(2))
    for fault in range(3):
        assert Job.objects.get(pk=job.pk).checkpoint_step == 4
        now = at(3 + 10 * fault)
        other = market.node(job.zone, last_heartbeat_at=now)
        finish_slice(
            node=held.node,
            result=build.result(held, Ended.FAILED, step=4, fault=Fault.SYSTEM, reason="Bad."),
            now=now,
        )
        if fault < 2:
            replace_job_cells(
                job=job, cells=[Cell(SLOT + fault + 1, other.pk)], reason="again", now=now
            )
            dispatch_slots(now=at(10 + 10 * fault))
            held = build.lease(job)
    job.refresh_from_db()
    newer.refresh_from_db()
    assert (job.checkpoint_step, job.step) == (2, 2)
    assert newer.file.name == ""
    assert list_job_checkpoints(job).first() == older


def test_after_three_faults_before_a_checkpoint_a_warm_start_is_dropped(running):
    job, _, held = running
    for fault in range(2):
        now = at(3 + 10 * fault)
        other = market.node(job.zone, last_heartbeat_at=now)
        failed = build.result(held, Ended.FAILED, step=0, fault=Fault.SYSTEM, reason="Bad.")
        finish_slice(node=held.node, result=failed, now=now)
        replace_job_cells(job=job, cells=[Cell(SLOT + fault + 1, other.pk)], reason="", now=now)
        dispatch_slots(now=at(10 + 10 * fault))
        held = build.lease(job)
    start = Start(StartKind.OWN, "art_1", "job_1", steps=4, target_loss=1.0, offer_id="warm_1")
    Job.objects.update(terms=replace(job.terms, start=start))
    failed = build.result(held, Ended.FAILED, step=0, fault=Fault.SYSTEM, reason="Bad.")
    finish_slice(node=held.node, result=failed, now=at(23))
    job.refresh_from_db()
    assert job.start == replace(start, dropped=Drop.UNUSABLE)
    assert (job.start.sold_steps, job.needs_replan) == (0, True)
