"""How a slice ends: its node says so, or goes silent."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Q

from marketplace.common.errors import Conflict, UserError
from marketplace.common.queue import enqueue
from marketplace.fleet import services as fleet
from marketplace.fleet.models import GONE, Node, NodeStatus, Zone
from marketplace.fleet.selectors import slot_at
from marketplace.jobs import locks
from marketplace.jobs.journal import record_event
from marketplace.jobs.lease_checks import LeaseLost, is_current
from marketplace.jobs.models import (
    Checkpoint,
    EventKind,
    FaultOf,
    Job,
    JobStatus,
    Slice,
    SliceStatus,
)
from marketplace.jobs.selectors import list_job_checkpoints
from marketplace.jobs.services.fault_attribution import blame_nodes, blame_overrun
from marketplace.jobs.services.finished_slices import apply_finished
from marketplace.jobs.services.life import close_slice, fail_job, mark_for_replan
from marketplace.jobs.services.result_checks import check_pace
from marketplace.jobs.services.system_faults import count_system_fault, rewind_to_checkpoint
from marketplace.jobs.services.uploads import discard_checkpoints_of
from marketplace.jobs.services.user_faults import note_user_fault
from marketplace.jobs.transitions import set_status
from marketplace.jobs.work import load_work_plan
from workers.protocol import reports
from workers.protocol.messages import KEPT_JOBS_MOST, Heartbeat, HeartbeatReply
from workers.protocol.reports import SliceResult
from workers.protocol.turns import DeviceTurn, DeviceTurnRequest
from workers.protocol.wire import to_json

#: Heartbeats in a row that must leave out a lease before it counts as dropped.
HEARTBEATS_BEFORE_DROPPED = 2
_GONE_TEXTS = {
    NodeStatus.OFFLINE: "went silent",
    NodeStatus.SUSPENDED: "was suspended after failing several jobs",
    NodeStatus.LEFT: "left",
}


@dataclass(frozen=True, slots=True)
class SliceOutcome:
    """What a result changed."""

    job: Job
    status: JobStatus
    #: The same result was applied before; nothing changed now.
    repeated: bool = False


def finish_slice(*, node: Node, result: SliceResult, now: datetime) -> SliceOutcome:
    """Apply how a slice ended, once: the same result again gets the same answer.

    Raises
    ------
    LeaseLost
        The lease is not current, or ended in another way; nothing changed.
    UserError
        ``work_missing``: finished, but not all steps are done; ``adapter_missing``: no adapter
        was stored under this lease; ``result_too_soon`` (503), also where it blames the input.
    """
    with transaction.atomic():
        found = locks.lock_slice(result.lease_token)
        if found is None or found[1].node_id != node.pk:
            raise LeaseLost
        job, held = found
        value = to_json(result)
        if held.result is not None and held.result == value:
            return SliceOutcome(job, JobStatus(job.status), repeated=True)
        if not is_current(held, node=node, now=now) or not job.is_active:
            raise LeaseLost
        held.result = value
        _store_figures(job, result)
        match result.status:
            case reports.SliceEnd.FINISHED:
                apply_finished(job, held, result, now)
            case reports.SliceEnd.PAUSED:
                _apply_paused(job, held, result, now)
            case reports.SliceEnd.FAILED:
                _apply_failed(job, held, result, now)
        enqueue("jobs.slots_dispatch")
    return SliceOutcome(job, JobStatus(job.status))


def sweep_leases(*, now: datetime) -> tuple[str, ...]:
    """Take back every lease that ran out or whose node is gone; the jobs' ids."""
    gone = Q(node__status__in=GONE)
    candidates = list(
        Slice.objects.filter(status=SliceStatus.OPEN)
        .filter(Q(lease_expires_at__lte=now) | gone)
        .order_by("job_id")
        .values_list("lease_token", flat=True)
    )
    lost: list[str] = []
    for lease_token in candidates:
        with transaction.atomic():
            found = locks.lock_slice(lease_token)
            if found is None or found[1].status != SliceStatus.OPEN:
                continue
            job, held = found
            if held.lease_expires_at <= now:
                reason = f"Node {held.node.name} did not report in time."
            elif held.node.status in GONE:
                reason = f"Node {held.node.name} {_GONE_TEXTS[NodeStatus(held.node.status)]}."
            else:
                continue
            lose_slice(job=job, held=held, reason=reason, now=now)
            lost.append(job.pk)
    return tuple(lost)


def apply_heartbeat(*, node: Node, heartbeat: Heartbeat, now: datetime) -> HeartbeatReply:
    """The node lives; say which of its leases are lost, and notice those it dropped.

    A node that started again after a crash no longer names leases that it had shown to work on:
    their jobs go on from their checkpoints at once, without waiting for the leases to run out.
    """
    if heartbeat.node_id != node.pk:
        raise UserError("wrong_node", "This heartbeat names another node than its token.")
    with transaction.atomic():
        node = fleet.record_heartbeat(node=node, heartbeat=heartbeat, now=now)
    named = set(heartbeat.lease_tokens)
    held = {
        found.lease_token: found
        for found in Slice.objects.filter(node=node, status=SliceStatus.OPEN).order_by("job_id")
    }
    revoked = sorted(
        token
        for token in named
        if token not in held or not is_current(held[token], node=node, now=now)
    )
    for token, found in held.items():
        _note_heartbeat(token, named=token in named, acknowledged=found.acknowledged_at, now=now)
    may_leave = _may_leave(node, now)
    if may_leave and heartbeat.draining and not named:
        # It had the order to stop, and this is its last report.
        fleet.retire_node(node=node, now=now)
    named_jobs = heartbeat.kept_jobs[:KEPT_JOBS_MOST]
    open_jobs = Job.objects.filter(pk__in=named_jobs, status__in=Job.ACTIVE)
    closed = set(named_jobs) - set(open_jobs.values_list("pk", flat=True))
    return HeartbeatReply(
        revoked=tuple(revoked),
        drain=may_leave,
        closed_jobs=tuple(sorted(closed)),
    )


def answer_turn(*, node: Node, request: DeviceTurnRequest, now: datetime) -> DeviceTurn:
    """As ``fleet.answer_turn``: a node of its device with a current lease ends its slot first."""
    here = Slice.objects.filter(status=SliceStatus.OPEN, lease_expires_at__gt=now)
    shared = here.filter(node__shared_device__isnull=False)
    busy = shared.filter(node__shared_device=node.shared_device_id).values_list("node", flat=True)
    return fleet.answer_turn(node=node, request=request, busy=set(busy), now=now)


def lose_slice(*, job: Job, held: Slice, reason: str, now: datetime) -> None:
    """A lease ended without a result: the job goes on elsewhere from its last checkpoint.

    Call while holding both.
    """
    close_slice(
        held,
        status=SliceStatus.LOST,
        reason=reason,
        now=now,
        reached_step=job.step,
        counted_step=job.checkpoint_step,
    )
    if not job.is_active:
        return
    rewind_to_checkpoint(job)
    record_event(
        job=job,
        kind=EventKind.NODE_LOST,
        message=f"{reason} The job goes on from step {job.checkpoint_step}.",
        now=now,
        data={
            "node": held.node_id,
            "checkpoint_step": job.checkpoint_step,
            "steps_lost": held.steps_lost,
        },
    )
    count_system_fault(job, reason, now)


def discard_node_work(*, node: Node, reason: str, now: datetime) -> tuple[str, ...]:
    """Have other nodes do again what a node did of its running jobs; ids of the jobs.

    They go on from the newest checkpoint of another node, so nothing that this one did counts; nor
    does what was built on it since. What the job loses by that is charged to this node. Nor is a
    paused job resumed from its checkpoints; one that was, and has none of its own, has nothing left
    to go on from, and so the market fails it.
    """
    _fail_resumed_from(node, reason, now)
    kept = (*Job.ACTIVE, JobStatus.PAUSED)
    jobs = Job.objects.filter(slices__node=node, status__in=kept).order_by("pk").distinct()
    changed: list[str] = []
    for job_id in list(jobs.values_list("pk", flat=True)):
        with transaction.atomic():
            job = locks.lock_job(job_id)
            if job.status == JobStatus.PAUSED and discard_checkpoints_of(job, node):
                job.save(update_fields=["checkpoint_step"])
            held = locks.lock_open_slice(job)
            is_its_own = held is not None and held.node_id == node.pk
            if not job.is_active or not (discard_checkpoints_of(job, node) or is_its_own):
                continue
            job.save(update_fields=["checkpoint_step"])
            blame_nodes(job, [node.pk])
            if held is not None and is_its_own:
                lose_slice(job=job, held=held, reason=reason, now=now)
            else:
                _take_back(job, held, reason, now)
            changed.append(job.pk)
    if changed:
        enqueue("jobs.slots_dispatch")
    return tuple(changed)


def _fail_resumed_from(node: Node, reason: str, now: datetime) -> None:
    """Fail running jobs that were resumed from a node's checkpoint, with no newer one of others."""
    active = Job.objects.filter(status__in=Job.ACTIVE, terms__resumes__step__gt=0)
    begun_at = {job: job.terms.resumes for job in active.filter(zone=node.zone_id).order_by("pk")}
    stored = Checkpoint.objects.filter(slice__node=node)
    names = [resumes.checkpoint_id for resumes in begun_at.values() if resumes]
    of_node = set(stored.filter(pk__in=names).values_list("pk", flat=True))
    why = f"{reason} The job was resumed from a checkpoint of that node."
    for begun, resumes in begun_at.items():
        if resumes is None or resumes.checkpoint_id not in of_node:
            continue
        # It may end at this moment.
        with suppress(Conflict), transaction.atomic():
            job = locks.lock_job(begun.pk)
            newer = list_job_checkpoints(job).filter(job=job).exclude(slice__node=node)
            if not newer.exists():
                blame_nodes(job, [node.pk])
                fail_job(job=job, fault=FaultOf.SYSTEM, reason=why, now=now)


def _take_back(job: Job, held: Slice | None, reason: str, now: datetime) -> None:
    """Begin again from the checkpoint that is left; a node that held the job is not at fault."""
    if held is not None:
        close_slice(
            held,
            status=SliceStatus.PAUSED,
            reason=reason,
            now=now,
            reached_step=job.step,
            counted_step=job.checkpoint_step,
        )
    rewind_to_checkpoint(job)
    if job.status == JobStatus.RUNNING:
        set_status(job, JobStatus.MOVING)
        job.save()
    record_event(
        job=job,
        kind=EventKind.FAULT,
        message=f"{reason} The job goes on from step {job.checkpoint_step}.",
        now=now,
        data={"checkpoint_step": job.checkpoint_step},
    )
    mark_for_replan(job=job, reason=reason, now=now)


def _apply_paused(job: Job, held: Slice, result: SliceResult, now: datetime) -> None:
    close_slice(
        held,
        status=SliceStatus.PAUSED,
        reason=result.reason,
        now=now,
        reached_step=job.step,
        counted_step=job.checkpoint_step,
    )
    rewind_to_checkpoint(job)
    slot = slot_at(job.zone, now)
    if job.last_slot is None or job.last_slot <= slot:
        blame_overrun(job, held, slot=slot)
    # Off one node and due on another: it is on its way, not waiting.
    following = {node for at, node in job.cells if slot <= at <= slot + 1}
    moving = bool(following - {held.node_id})
    set_status(job, JobStatus.MOVING if moving else JobStatus.QUEUED)
    job.save()
    record_event(
        job=job,
        kind=EventKind.PAUSED,
        message=f"Paused on node {held.node.name} at step {job.checkpoint_step}.",
        now=now,
        actor=held.node_id,
        data={"step": job.checkpoint_step},
    )
    if job.last_slot is None or job.last_slot < slot:
        mark_for_replan(job=job, reason="It did not end within its planned slots.", now=now)


def _apply_failed(job: Job, held: Slice, result: SliceResult, now: datetime) -> None:
    reason = result.reason or "The node gave no reason."
    if result.fault == reports.Fault.USER:
        step = max(min(result.step, load_work_plan(job).total_steps), job.checkpoint_step)
        check_pace(job, held, step=step, now=now)
    close_slice(
        held,
        status=SliceStatus.FAILED,
        reason=reason,
        now=now,
        reached_step=job.step,
        counted_step=job.checkpoint_step,
    )
    if result.fault == reports.Fault.USER:
        note_user_fault(job, held, reason, now)
        return
    fleet.note_node_fault(node=held.node, now=now)
    rewind_to_checkpoint(job)
    record_event(
        job=job,
        kind=EventKind.FAULT,
        message=f"Failed on node {held.node.name}: {reason}",
        now=now,
        actor=held.node_id,
        data={"node": held.node_id, "checkpoint_step": job.checkpoint_step},
    )
    count_system_fault(job, reason, now)


def _store_figures(job: Job, result: SliceResult) -> None:
    """The node's own account of the run, which progress reports may not cover."""
    job.step = result.step
    job.total_steps = result.total_steps
    job.samples_done = result.samples_done
    job.trained_tokens = max(job.trained_tokens, result.trained_tokens)
    if result.first_train_loss is not None:
        job.first_train_loss = result.first_train_loss
    if result.last_train_loss is not None:
        job.train_loss = result.last_train_loss
    if result.valid_loss_before is not None:
        job.valid_loss_before = result.valid_loss_before
    if result.valid_loss_after is not None:
        job.valid_loss = result.valid_loss_after
    if result.peak_memory_gb is not None:
        job.memory_gb = result.peak_memory_gb


def _note_heartbeat(
    lease_token: str, *, named: bool, acknowledged: datetime | None, now: datetime
) -> None:
    if named and acknowledged is not None:
        Slice.objects.filter(lease_token=lease_token, heartbeats_missed__gt=0).update(
            heartbeats_missed=0
        )
        return
    if named:
        Slice.objects.filter(lease_token=lease_token).update(acknowledged_at=now)
        return
    if acknowledged is None:
        # The plan that names it may still be on its way.
        return
    with transaction.atomic():
        found = locks.lock_slice(lease_token)
        if found is None or found[1].status != SliceStatus.OPEN:
            return
        job, held = found
        held.heartbeats_missed += 1
        held.save(update_fields=["heartbeats_missed"])
        if held.heartbeats_missed >= HEARTBEATS_BEFORE_DROPPED:
            lose_slice(job=job, held=held, reason=f"Node {held.node.name} started again.", now=now)
            enqueue("jobs.slots_dispatch")


def _may_leave(node: Node, now: datetime) -> bool:
    """Whether a node that was asked to leave has served all that was sold of it."""
    if node.status == NodeStatus.LEFT:
        return True
    if node.status != NodeStatus.DRAINING or node.leave_asked_at is None:
        return False
    if Slice.objects.filter(node=node, status=SliceStatus.OPEN).exists():
        return False
    zone = Zone.objects.get(pk=node.zone_id)
    slot = slot_at(zone, now)
    active = Job.objects.filter(zone=zone, status__in=Job.ACTIVE)
    return not any(
        at >= slot and on == node.pk
        for cells in active.values_list("cells", flat=True)
        for at, on in cells
    )
