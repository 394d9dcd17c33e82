"""How a slice ends: its node says so, or goes silent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Q

from marketplace.common.errors import UserError
from marketplace.common.queue import enqueue
from marketplace.fleet import services as fleet
from marketplace.fleet.models import GONE, Node, NodeStatus, Zone
from marketplace.fleet.selectors import slot_at
from marketplace.jobs import locks
from marketplace.jobs.executed_work import is_user_fault, list_slices
from marketplace.jobs.journal import record_event
from marketplace.jobs.lease_checks import LeaseLost, is_current
from marketplace.jobs.models import (
    Artifact,
    EventKind,
    FaultOf,
    Job,
    JobStatus,
    Slice,
    SliceStatus,
)
from marketplace.jobs.services.blame import blame_nodes, blame_overrun
from marketplace.jobs.services.life import (
    close_slice,
    drop_start,
    end_job,
    fail,
    mark_for_replan,
)
from marketplace.jobs.services.uploads import (
    discard_checkpoints_of,
    drop_checkpoints,
    set_aside_checkpoint,
)
from marketplace.jobs.starts import Drop
from marketplace.jobs.transitions import set_status
from marketplace.jobs.work import load_job_totals, load_work_plan
from workers.protocol import messages as protocol
from workers.protocol.messages import Heartbeat, HeartbeatReply, SliceResult
from workers.protocol.wire import to_json

__all__ = [
    "LeaseLost",
    "SliceOutcome",
    "apply_heartbeat",
    "discard_node_work",
    "finish_slice",
    "sweep_leases",
]

#: Faults of the market in a row, with no new checkpoint between, before a job is given up.
SYSTEM_FAULTS_MAX = 5
#: Heartbeats in a row that must leave out a lease before it counts as dropped.
HEARTBEATS_BEFORE_DROPPED = 2
#: At this many faults in a row the newest checkpoint is suspected and set aside.
SYSTEM_FAULTS_SUSPICIOUS = 3
_GONE_TEXTS = {
    NodeStatus.OFFLINE: "went silent",
    NodeStatus.SUSPENDED: "was suspended after failing several jobs",
    NodeStatus.LEFT: "left",
}


@dataclass(frozen=True, slots=True)
class SliceOutcome:
    """What a result changed."""

    job: Job
    slice: Slice
    status_before: JobStatus
    status_after: JobStatus
    #: The same result was applied before; nothing changed now.
    repeated: bool = False

    @property
    def job_ended(self) -> bool:
        """This very result ended the job."""
        return not self.repeated and not self.job.is_active


def finish_slice(*, node: Node, result: SliceResult, now: datetime) -> SliceOutcome:
    """Apply how a slice ended, once: the same result again gets the same answer.

    Raises
    ------
    LeaseLost
        The lease is not current, or ended in another way; nothing changed.
    UserError
        ``work_missing``: finished, but not all steps are done; ``adapter_missing``: no adapter
        was stored under this lease.
    """
    with transaction.atomic():
        found = locks.lock_slice(result.lease_token)
        if found is None or found[1].node_id != node.pk:
            raise LeaseLost
        job, held = found
        before = JobStatus(job.status)
        value = to_json(result)
        if held.result is not None and held.result == value:
            return SliceOutcome(job, held, before, before, repeated=True)
        if not is_current(held, node=node, now=now) or not job.is_active:
            raise LeaseLost
        held.result = value
        _store_figures(job, result)
        match result.status:
            case protocol.SliceEnd.FINISHED:
                _apply_finished(job, held, result, now)
            case protocol.SliceEnd.PAUSED:
                _apply_paused(job, held, result, now)
            case protocol.SliceEnd.FAILED:
                _apply_failed(job, held, result, now)
        enqueue("jobs.slots_dispatch")
    return SliceOutcome(job, held, before, JobStatus(job.status))


def sweep_leases(*, now: datetime) -> tuple[str, ...]:
    """Take back every lease that ran out or whose node is gone; returns the jobs' ids."""
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
    return HeartbeatReply(revoked=tuple(revoked), drain=may_leave)


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
    _rewind_to_checkpoint(job)
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
    _count_system_fault(job, reason, now)


def discard_node_work(*, node: Node, reason: str, now: datetime) -> tuple[str, ...]:
    """Have other nodes do again what a node did of its running jobs; ids of the jobs.

    They go on from the newest checkpoint of another node, so nothing that this one did counts; nor
    does what was built on it since. What the job loses by that is charged to this node.
    """
    own = Q(slices__node=node)
    jobs = Job.objects.filter(own, status__in=Job.ACTIVE).order_by("pk").distinct()
    changed: list[str] = []
    for job_id in list(jobs.values_list("pk", flat=True)):
        with transaction.atomic():
            job = locks.lock_job(job_id)
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
    _rewind_to_checkpoint(job)
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


def _apply_finished(job: Job, held: Slice, result: SliceResult, now: datetime) -> None:
    _check_all_done(job, result)
    if not Artifact.objects.filter(job=job, slice=held).exists():
        raise UserError(
            "adapter_missing",
            "A job is finished when its adapter is stored. Upload the adapter, then report again.",
            status=409,
        )
    close_slice(
        held,
        status=SliceStatus.FINISHED,
        reason=result.reason,
        now=now,
        counted_step=result.step,
    )
    fleet.note_node_work(node=held.node)
    if _is_above_target(job, result):
        _begin_again(job, result, now)
        return
    job.stopped_early, job.best_step = result.stopped_early, result.best_step
    end_job(
        job=job,
        status=JobStatus.SUCCEEDED,
        kind=EventKind.SUCCEEDED,
        message=_describe_end(result),
        now=now,
        data={
            "step": job.step,
            "first_train_loss": job.first_train_loss,
            "last_train_loss": job.train_loss,
            "valid_loss_before": job.valid_loss_before,
            "valid_loss_after": job.valid_loss,
        },
    )


def _check_all_done(job: Job, result: SliceResult) -> None:
    """Refuse an end before all of the work is done.

    A job may stop early where its settings say so, a warm start where it reached its target loss.
    """
    planned = load_job_totals(job).steps
    if result.step == result.total_steps == planned:
        return
    if result.stopped_early and _may_stop_early(job, result):
        return
    if _has_reached_target(job, result):
        return
    raise UserError(
        "work_missing",
        f"A job is finished when all of its {planned} steps are done. "
        f"This result says {result.step} of {result.total_steps}.",
        status=409,
    )


def _is_above_target(job: Job, result: SliceResult) -> bool:
    """Whether a warm start ends without having been at its target loss.

    A run from the base model might have been there, so its result is not the owner's. A loss that
    the owner asked for is enough in any case.
    """
    start, loss = job.start, result.valid_loss_after
    if start is None or not start.sold_steps or start.target_loss is None:
        return False
    return loss is None or loss > max(start.target_loss, job.training.get("target_loss", 0.0))


def _begin_again(job: Job, result: SliceResult, now: datetime) -> None:
    """Have a job that began warm run cold, at no cost to its owner; the nodes' work counts."""
    drop_start(
        job=job,
        why=Drop.FELL_BEHIND,
        message=(
            f"After all {result.step} steps the validation loss is not as low as a run from the "
            "base model may end. The job begins again with the base model, at no cost to you."
        ),
        now=now,
    )
    drop_checkpoints(job)
    job.step, job.samples_done, job.epoch, job.total_steps = 0, 0, 0.0, None
    job.eta_at = job.first_train_loss = job.train_loss = job.valid_loss = None
    set_status(job, JobStatus.MOVING)
    job.save()
    mark_for_replan(job=job, reason="It begins again without its warm start.", now=now)


def _describe_end(result: SliceResult) -> str:
    if not result.stopped_early:
        return "Finished; the adapter is ready."
    if result.best_step is None:
        return f"Ended after step {result.step} of {result.total_steps}, at its target score."
    return (
        f"Stopped early after step {result.step} of {result.total_steps}: the validation loss fell "
        f"no further. The adapter has the weights of step {result.best_step}."
    )


def _may_stop_early(job: Job, result: SliceResult) -> bool:
    """Whether the settings let a job end there.

    It is at its target score, or so many evaluations as they name lie between the best step and the
    last.
    """
    patience, plan = job.training.get("early_stopping", 0), load_work_plan(job)
    best, loss = result.best_step, result.valid_loss_after
    if loss is not None and loss <= job.training.get("target_loss", 0.0):
        return 0 < result.step < plan.total_steps and plan.is_evaluated_at(result.step)
    if not patience or best is None or not 0 <= best < result.step < plan.total_steps:
        return False
    if not (plan.is_evaluated_at(best) and plan.is_evaluated_at(result.step)):
        return False
    return plan.count_evaluations(result.step) - plan.count_evaluations(best) >= patience


def _has_reached_target(job: Job, result: SliceResult) -> bool:
    start, loss = job.start, result.valid_loss_after
    if start is None or start.target_loss is None or loss is None:
        return False
    if not result.step >= start.sold_steps > 0:
        return False
    is_end = result.step == start.sold_steps
    evaluated = is_end or load_work_plan(job).is_evaluated_at(result.step)
    return evaluated and loss <= start.target_loss


def _apply_paused(job: Job, held: Slice, result: SliceResult, now: datetime) -> None:
    close_slice(
        held,
        status=SliceStatus.PAUSED,
        reason=result.reason,
        now=now,
        reached_step=job.step,
        counted_step=job.checkpoint_step,
    )
    _rewind_to_checkpoint(job)
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
    close_slice(
        held,
        status=SliceStatus.FAILED,
        reason=reason,
        now=now,
        reached_step=job.step,
        counted_step=job.checkpoint_step,
    )
    if result.fault == protocol.Fault.USER:
        _apply_user_fault(job, held, reason, now)
        return
    fleet.note_node_fault(node=held.node, now=now)
    _rewind_to_checkpoint(job)
    record_event(
        job=job,
        kind=EventKind.FAULT,
        message=f"Failed on node {held.node.name}: {reason}",
        now=now,
        actor=held.node_id,
        data={"node": held.node_id, "checkpoint_step": job.checkpoint_step},
    )
    _count_system_fault(job, reason, now)


def _apply_user_fault(job: Job, held: Slice, reason: str, now: datetime) -> None:
    """End a job that a node blames its owner for, once another run has come to the same end.

    One node alone is not believed: it would be paid for work that it did not do.
    """
    blamed = [other for other in list_slices(job) if is_user_fault(other)]
    if len(blamed) > 1:
        fail(job=job, fault=FaultOf.USER, reason=reason, now=now, actor=held.node_id)
        return
    _rewind_to_checkpoint(job)
    set_status(job, JobStatus.MOVING)
    job.save()
    record_event(
        job=job,
        kind=EventKind.FAULT,
        message=f"Node {held.node.name} finds fault with the input: {reason} It is tried again.",
        now=now,
        actor=held.node_id,
        data={"node": held.node_id, "checkpoint_step": job.checkpoint_step},
    )
    mark_for_replan(job=job, reason="The fault that a node found is checked.", now=now)


def _count_system_fault(job: Job, reason: str, now: datetime) -> None:
    """Count a fault of the market against its patience, not against the owner."""
    job.system_faults += 1
    job.save(update_fields=["system_faults"])
    if job.system_faults >= SYSTEM_FAULTS_MAX:
        fail(
            job=job,
            fault=FaultOf.SYSTEM,
            reason=f"Given up after {job.system_faults} failures of ours; the last: {reason}",
            now=now,
        )
        return
    if job.status == JobStatus.RUNNING:
        set_status(job, JobStatus.MOVING)
    if job.system_faults == SYSTEM_FAULTS_SUSPICIOUS:
        _set_aside_beginning(job, now)
        _rewind_to_checkpoint(job)
    job.save()
    mark_for_replan(job=job, reason=reason, now=now)


def _set_aside_beginning(job: Job, now: datetime) -> None:
    """Have a job go on from elsewhere: what it goes on from may be what every node fails on."""
    start = job.start
    if job.checkpoint_step or start is None or not start.sold_steps:
        set_aside_checkpoint(job)
        return
    message = "It begins with the base model, since its warm start may be what nodes fail on."
    drop_start(job=job, why=Drop.UNUSABLE, message=message, now=now)


def _rewind_to_checkpoint(job: Job) -> None:
    """What was done after the newest checkpoint is to be done again."""
    job.eta_at = None
    if job.total_steps and job.step > job.checkpoint_step:
        job.samples_done = round(job.samples_done * job.checkpoint_step / job.step)
        job.epoch = job.epoch * job.checkpoint_step / job.step
        job.step = job.checkpoint_step
    job.save(update_fields=["eta_at", "samples_done", "epoch", "step"])


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
