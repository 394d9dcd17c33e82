"""What nodes are told at slot boundaries and in between."""

from __future__ import annotations

import pytest

from marketplace.fleet.models import NodeStatus
from marketplace.jobs.models import EventKind, Job, JobStatus, NodePlan, Slice, SliceStatus
from marketplace.jobs.plans import add_to_plan
from marketplace.jobs.services import (
    cancel_job,
    dispatch_slots,
    finish_slice,
    record_progress,
    replace_job_cells,
    store_checkpoint,
)
from scheduler.types import Cell
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from tests.job_builders import SLOT, at
from workers.protocol.errands import ErrandSpec
from workers.protocol.messages import SlotPlan
from workers.protocol.reports import SliceEnd as Ended
from workers.protocol.wire import from_json

pytestmark = pytest.mark.django_db


def plans() -> list[tuple[str, int, int, list[str]]]:
    """Node, slot from ``SLOT``, revision and jobs of every plan, oldest first."""
    return [
        (plan.node.name, plan.slot - SLOT, plan.revision, sorted(_jobs(plan)))
        for plan in NodePlan.objects.select_related("node").order_by("pk")
    ]


def _jobs(plan: NodePlan) -> list[str]:
    return [held.job.job_id for held in from_json(SlotPlan, plan.plan).slices]


def test_a_job_gets_a_lease_and_its_node_a_plan_in_the_slot_of_its_cell():
    zone = market.zone()
    node, other = market.node(zone), market.node(zone)
    job = build.job(zone, (0, node), (1, node))

    done = dispatch_slots(now=NOW)

    assert done.started == (job.pk,)
    held = build.lease(job)
    assert (held.node, held.first_slot, held.last_slot) == (node, SLOT, SLOT)
    assert held.lease_expires_at == at(10 + zone.lease_grace_s)
    assert plans() == [(node.name, 0, 1, [job.pk])]
    assert not NodePlan.objects.filter(node=other).exists()
    plan = from_json(SlotPlan, NodePlan.objects.get().plan)
    assert (plan.starts_at, plan.ends_at) == (NOW.timestamp(), at(10).timestamp())
    (part,) = plan.slices
    assert part.lease_token == held.lease_token
    assert part.resume_from is None
    assert part.job.dataset.url == f"/internal/v1/leases/{held.lease_token}/blobs/dataset"
    assert part.job.dataset.sha256 == job.dataset.sha256
    job.refresh_from_db()
    assert (job.status, job.started_at) == (JobStatus.RUNNING, NOW)


def test_dispatching_again_in_the_slot_makes_no_second_plan():
    zone = market.zone()
    node = market.node(zone)
    job = build.job(zone, (0, node))
    dispatch_slots(now=NOW)
    first = NodePlan.objects.get()

    again = dispatch_slots(now=at(3))

    assert (again.started, again.plans) == ((), ())
    assert NodePlan.objects.get().plan == first.plan
    assert Slice.objects.filter(job=job).count() == 1


def test_consecutive_cells_on_a_node_go_on_under_one_lease():
    zone = market.zone()
    node = market.node(zone)
    job = build.job(zone, (0, node), (1, node))
    dispatch_slots(now=NOW)
    before = build.lease(job)

    dispatch_slots(now=at(10))

    after = build.lease(job)
    assert after.lease_token == before.lease_token
    assert (after.first_slot, after.last_slot) == (SLOT, SLOT + 1)
    assert after.lease_expires_at == at(20 + zone.lease_grace_s)
    assert plans() == [(node.name, 0, 1, [job.pk]), (node.name, 1, 1, [job.pk])]
    kinds = list(job.events.order_by("seq").values_list("kind", flat=True))
    assert kinds == [EventKind.OPENED, EventKind.STARTED]


def test_jobs_of_one_node_are_in_one_plan_in_the_order_they_began():
    zone = market.zone()
    node = market.node(zone)
    early = build.job(zone, (0, node), (1, node))
    late = build.job(zone, (1, node))
    dispatch_slots(now=NOW)

    dispatch_slots(now=at(10))

    plan = from_json(SlotPlan, NodePlan.objects.latest("pk").plan)
    assert [held.job.job_id for held in plan.slices] == [early.pk, late.pk]


def test_a_clock_that_is_set_back_makes_no_plan_of_an_earlier_slot():
    zone = market.zone()
    node, other = market.node(zone), market.node(zone)
    errand = ErrandSpec("check", "token", at(60).timestamp(), {})
    job = build.job(zone, (0, node), (1, node))
    for seconds in (0, 10):
        dispatch_slots(now=at(seconds))
        assert add_to_plan(zone, other, errand, now=at(seconds))
    later = build.job(zone, (0, node), (1, node))

    # Nor a lease, of which its node would not hear.
    done = dispatch_slots(now=at(9))
    assert (done.started, done.plans) == ((), ())
    assert not add_to_plan(zone, other, errand, now=at(9))

    dispatch_slots(now=at(11))
    assert plans()[-1] == (node.name, 1, 2, sorted([job.pk, later.pk]))


def test_a_job_admitted_in_its_slot_starts_in_it_by_a_second_revision():
    zone = market.zone()
    node = market.node(zone)
    first = build.job(zone, (0, node))
    dispatch_slots(now=NOW)
    second = build.job(zone, (0, node), now=at(4))

    dispatch_slots(now=at(4))

    assert plans() == [
        (node.name, 0, 1, [first.pk]),
        (node.name, 0, 2, sorted([first.pk, second.pk])),
    ]
    assert from_json(SlotPlan, NodePlan.objects.latest("pk").plan).revision == 2


def test_a_node_is_told_to_let_go_once_and_then_left_in_peace():
    zone = market.zone()
    node = market.node(zone)
    job = build.job(zone, (0, node), (5, node))
    dispatch_slots(now=NOW)

    dispatch_slots(now=at(10))
    dispatch_slots(now=at(20))
    dispatch_slots(now=at(30))

    assert plans() == [(node.name, 0, 1, [job.pk]), (node.name, 1, 1, [])]


def test_a_job_that_moves_waits_for_its_node_to_let_go_and_goes_on_from_there():
    zone = market.zone()
    old, new = market.node(zone), market.node(zone)
    job = build.job(zone, (0, old), (1, new), (2, new))
    dispatch_slots(now=NOW)
    held = build.lease(job)

    dispatch_slots(now=at(10))

    assert plans()[1:] == [(old.name, 1, 1, [])]
    assert Job.objects.get(pk=job.pk).status == JobStatus.MOVING
    assert Slice.objects.filter(job=job).count() == 1

    stored = store_checkpoint(
        node=old, lease_token=held.lease_token, step=5, content=_file(), now=at(11)
    )
    finish_slice(node=old, result=build.result(held, Ended.PAUSED, step=5), now=at(11))
    assert Job.objects.get(pk=job.pk).status == JobStatus.MOVING
    dispatch_slots(now=at(11))

    assert plans()[2:] == [(new.name, 1, 1, [job.pk])]
    (part,) = from_json(SlotPlan, NodePlan.objects.latest("pk").plan).slices
    assert part.lease_token != held.lease_token
    assert part.resume_from is not None
    assert (part.resume_from.step, part.resume_from.blob.sha256) == (5, stored.sha256)
    assert part.resume_from.blob.url.endswith(f"{part.lease_token}/blobs/{stored.pk}")
    assert Job.objects.get(pk=job.pk).status == JobStatus.RUNNING


def test_a_job_that_leaves_at_the_slots_end_is_asked_to_just_before_it():
    zone = market.zone()
    old, new = market.node(zone), market.node(zone)
    job = build.job(zone, (0, old), (1, new))
    dispatch_slots(now=NOW)
    held = build.lease(job)

    early = record_progress(
        node=old, report=build.report(held, build.event(1, step=1)), now=at(7.9)
    )
    late = record_progress(node=old, report=build.report(held, build.event(2, step=2)), now=at(8))

    assert (early.keep_running, early.checkpoint_and_stop) == (True, False)
    assert (late.keep_running, late.checkpoint_and_stop) == (True, True)


def test_a_job_that_was_let_go_early_is_not_started_again_in_the_same_slot():
    zone = market.zone()
    old, new = market.node(zone), market.node(zone)
    job = build.job(zone, (0, old), (1, new))
    dispatch_slots(now=NOW)
    held = build.lease(job)
    finish_slice(node=old, result=build.result(held, Ended.PAUSED, step=5), now=at(9))

    dispatch_slots(now=at(9.5))
    assert not Slice.objects.filter(job=job, status=SliceStatus.OPEN).exists()

    dispatch_slots(now=at(10))
    assert build.lease(job).node == new


def test_a_job_that_ran_out_of_cells_is_marked_for_a_new_plan_once():
    zone = market.zone()
    node = market.node(zone)
    job = build.job(zone, (0, node))
    dispatch_slots(now=NOW)

    dispatch_slots(now=at(10))
    dispatch_slots(now=at(11))

    job.refresh_from_db()
    assert (job.needs_replan, job.replan_wanted_at) == (True, at(10))
    assert job.events.filter(kind=EventKind.REPLAN_WANTED).count() == 1


def test_a_job_whose_slots_passed_unused_is_marked_for_a_new_plan():
    zone = market.zone()
    node = market.node(zone)
    job = build.job(zone, (0, node))

    dispatch_slots(now=at(25))

    job.refresh_from_db()
    assert (job.status, job.needs_replan) == (JobStatus.QUEUED, True)
    assert plans() == []


def test_a_job_too_slow_for_its_last_cell_is_marked_before_the_cell_ends():
    zone = market.zone()
    node = market.node(zone)
    job = build.job(zone, (0, node), (1, node))
    dispatch_slots(now=NOW)
    held = build.lease(job)
    record_progress(
        node=node, report=build.report(held, build.event(1, step=1, eta_s=18.0)), now=at(9)
    )
    dispatch_slots(now=at(9))
    assert not Job.objects.get(pk=job.pk).needs_replan  # not in its last cell yet
    dispatch_slots(now=at(10))
    assert Job.objects.get(pk=job.pk).needs_replan
    assert Job.objects.get(pk=job.pk).status == JobStatus.RUNNING


def test_a_job_that_has_done_its_last_step_ends_on_its_node_after_its_slot():
    zone = market.zone()
    node = market.node(zone)
    job = build.job(zone, (0, node))
    dispatch_slots(now=NOW)
    held = build.lease(job)
    event = build.event(1, step=12)
    record_progress(node=node, report=build.report(held, event), now=at(9))

    dispatch_slots(now=at(10))

    job.refresh_from_db()
    assert (job.status, job.needs_replan) == (JobStatus.RUNNING, False)
    assert plans()[-1] == (node.name, 1, 1, [])
    assert not job.events.filter(kind=EventKind.MOVING).exists()


def test_new_cells_on_the_same_node_let_the_job_go_on_under_its_lease():
    zone = market.zone()
    node = market.node(zone)
    job = build.job(zone, (0, node))
    dispatch_slots(now=NOW)
    before = build.lease(job)

    replace_job_cells(
        job=job, cells=[Cell(slot=SLOT + 1, node=node.pk)], reason="slower", now=at(9)
    )
    dispatch_slots(now=at(10))

    job.refresh_from_db()
    assert job.cells == [[SLOT, node.pk], [SLOT + 1, node.pk]]
    assert build.lease(job).lease_token == before.lease_token
    assert plans()[-1] == (node.name, 1, 1, [job.pk])


@pytest.mark.parametrize("status", [NodeStatus.OFFLINE, NodeStatus.LEFT])
def test_nothing_starts_on_a_node_that_is_gone_and_the_job_is_replanned(status: NodeStatus):
    zone = market.zone()
    node = market.node(zone, status=status)
    job = build.job(zone, (0, node))

    dispatch_slots(now=NOW)

    job.refresh_from_db()
    assert (job.status, job.needs_replan) == (JobStatus.QUEUED, True)
    assert not Slice.objects.exists()
    assert plans() == []


def test_a_draining_node_still_serves_what_was_sold_of_it():
    zone = market.zone()
    node = market.node(zone, status=NodeStatus.DRAINING)
    job = build.job(zone, (0, node))

    assert dispatch_slots(now=NOW).started == (job.pk,)


def test_a_cancelled_job_leaves_its_nodes_plan_at_once():
    zone = market.zone()
    node = market.node(zone)
    job, other = build.job(zone, (0, node)), build.job(zone, (0, node))
    dispatch_slots(now=NOW)
    held = build.lease(job)
    cancel_job(job=job, cancelled_by=None, now=at(2))

    dispatch_slots(now=at(2))

    assert plans()[-1] == (node.name, 0, 2, [other.pk])
    held.refresh_from_db()
    assert held.status == SliceStatus.REVOKED


def test_faulty_lines_of_the_data_are_left_out_of_training():
    zone = market.zone()
    node = market.node(zone)
    job = build.job(zone, (0, node))
    job.dataset.faulty_lines = [3, 9]
    job.dataset.save()

    dispatch_slots(now=NOW)

    (part,) = from_json(SlotPlan, NodePlan.objects.get().plan).slices
    assert part.job.skip_lines == (3, 9)


def _file():
    import io

    return io.BytesIO(build.safetensors())


def test_a_plan_made_anew_because_a_node_is_gone_is_not_asked_for_again():
    zone = market.zone()
    lost, other = market.node(zone), market.node(zone)
    job = build.job(zone, (0, lost), (1, lost))
    type(lost).objects.filter(pk=lost.pk).update(status=NodeStatus.LEFT)
    dispatch_slots(now=NOW)
    job.refresh_from_db()
    assert job.needs_replan
    replace_job_cells(
        job=job, cells=[Cell(slot=SLOT + 1, node=other.pk)], reason="planned again", now=NOW
    )
    dispatch_slots(now=NOW)
    job.refresh_from_db()
    assert not job.needs_replan
    assert job.cells == [[SLOT + 1, other.pk]]
    assert job.events.filter(kind=EventKind.REPLAN_WANTED).count() == 1
