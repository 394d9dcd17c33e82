"""The life of a job outside its nodes: re-planned, ended, settled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db import transaction

from marketplace.accounts.models import User
from marketplace.common.durable.services import schedule_work
from marketplace.common.errors import Conflict
from marketplace.common.queue import enqueue
from marketplace.common.traces import record_stage
from marketplace.fleet.models import GONE, Node
from marketplace.fleet.selectors import slot_at, slot_ends_at
from marketplace.jobs import locks
from marketplace.jobs.journal import record_event
from marketplace.jobs.loss_curves import build_archiving
from marketplace.jobs.models import (
    Dataset,
    EventKind,
    FaultOf,
    Job,
    JobEvent,
    JobStatus,
    Slice,
    SliceStatus,
)
from marketplace.jobs.services.fault_attribution import blame_nodes
from marketplace.jobs.services.opening import serialize_cells
from marketplace.jobs.services.result_checks import find_believed_step
from marketplace.jobs.transitions import WrongTransition, set_status
from scheduler.types import Cell
from workers.protocol.starts import Drop

_REASON_CHARS = 255
_WITHDRAWN = (
    "The adapter that the job was to begin with was withdrawn. It begins with the base model and "
    "does all of its steps, at the same price."
)


def replace_job_cells(*, job: Job, cells: Iterable[Cell], reason: str, now: datetime) -> Job:
    """Give a job new cells from now on; those past, and the one under way, stay as they were.

    Parameters
    ----------
    reason
        What the job's history says of it; empty: nothing, since what it says last covers this.

    Raises
    ------
    Conflict
        ``job_ended``: there is nothing left to plan.
    """
    new = serialize_cells(cells)
    with transaction.atomic():
        job = locks.lock_job(job.pk)
        _check_active(job)
        current = slot_at(job.zone, now)
        replaced = {slot for slot, _ in new}
        kept = [cell for cell in job.cells if cell[0] <= current and cell[0] not in replaced]
        if kept and kept[-1][0] == current and _is_lost(job, kept[-1][1]):
            # Nothing ran there and nothing will: dispatch would ask for a new plan again.
            kept.pop()
        job.cells = sorted(kept + new)
        if job.cells:
            job.finish_planned_at = slot_ends_at(job.zone, job.cells[-1][0])
        job.needs_replan = False
        job.replan_reason = ""
        job.replan_wanted_at = None
        job.save(
            update_fields=[
                "cells",
                "finish_planned_at",
                "needs_replan",
                "replan_reason",
                "replan_wanted_at",
            ]
        )
        if reason:
            record_event(
                job=job,
                kind=EventKind.REPLANNED,
                message=reason,
                now=now,
                data={
                    "cells": new,
                    "finish_planned_at": job.finish_planned_at.isoformat(),
                },
            )
        enqueue("jobs.slots_dispatch")
    return job


def give_prepared_data(
    *, job: Job, dataset: Dataset, held_out: Dataset | None, message: str, now: datetime
) -> Job:
    """Let a job train on prepared data; giving the same data again changes nothing.

    Raises
    ------
    Conflict
        ``job_ended``: nothing trains on them any more.
    """
    with transaction.atomic():
        job = locks.lock_job(job.pk)
        _check_active(job)
        if job.awaits_data:
            job.dataset, job.validation_dataset, job.awaits_data = dataset, held_out, False
            job.terms = replace(
                job.terms,
                dataset=dataset.pk,
                validation=None if held_out is None else held_out.pk,
            )
            job.save(update_fields=["terms", "dataset", "validation_dataset", "awaits_data"])
            record_event(job=job, kind=EventKind.PREPARED, message=message, now=now)
            enqueue("jobs.slots_dispatch")
    return job


def _is_lost(job: Job, node_id: str) -> bool:
    """Whether a job has nothing under way and a node is gone. Call while holding the job."""
    if locks.lock_open_slice(job) is not None:
        return False
    return Node.objects.filter(pk=node_id, status__in=GONE).exists()


def withdraw_start(*, bid_id: str, now: datetime) -> bool:
    """Have a bid's job do without the adapter that it was to begin with; whether it had not begun.

    Its price stays, and it does all of its steps.
    """
    waiting = Job.objects.filter(bid_id=bid_id, status__in=Job.ACTIVE, slices=None)
    job_id = waiting.values_list("pk", flat=True).first()
    # Most have begun: those who hold one, and may wait for what the caller holds, are left alone.
    if job_id is None:
        return False
    with transaction.atomic():
        job = locks.lock_job(job_id)
        if job.start is None or job.start.dropped or not job.is_active:
            return False
        if Slice.objects.filter(job=job).exists():
            return False
        drop_start(job=job, why=Drop.WITHDRAWN, message=_WITHDRAWN, now=now)
    return True


def drop_start(*, job: Job, why: Drop, message: str, now: datetime) -> None:
    """Have a job begin with fresh weights. Call while holding the job, which has a start."""
    assert job.start is not None
    job.terms = replace(job.terms, start=replace(job.start, dropped=why))
    job.save(update_fields=["terms"])
    record_event(job=job, kind=EventKind.START_DROPPED, message=message, now=now, data={"why": why})


def request_job_replan(
    *,
    job: Job,
    reason: str,
    now: datetime,
    is_trouble: bool = True,
    lost_nodes: Iterable[str] = (),
) -> Job:
    """Ask the auction for new cells; asking again changes nothing.

    ``is_trouble``: something went wrong, rather than something better having turned up.
    ``lost_nodes`` are those whose cells it lost.
    """
    with transaction.atomic():
        job = locks.lock_job(job.pk)
        if job.is_active:
            blame_nodes(job, lost_nodes)
            mark_for_replan(job=job, reason=reason, now=now, is_trouble=is_trouble)
    return job


def mark_for_replan(*, job: Job, reason: str, now: datetime, is_trouble: bool = True) -> None:
    """Mark a job for the auction. Call while holding the job."""
    if job.needs_replan:
        return
    job.needs_replan = True
    job.replan_reason = reason[:_REASON_CHARS]
    job.replan_wanted_at = now
    job.save(update_fields=["needs_replan", "replan_reason", "replan_wanted_at"])
    record_event(
        job=job,
        kind=EventKind.REPLAN_WANTED,
        message=reason,
        now=now,
        data={"is_trouble": is_trouble},
    )
    enqueue("auction.jobs_replan")


def cancel_job(
    *, job: Job, cancelled_by: User | None, now: datetime, is_pause: bool = False
) -> Job:
    """End a job at its owner's wish; its node drops it at once.

    One that is paused (``is_pause``) can be resumed from its last checkpoint.

    Raises
    ------
    Conflict
        ``job_ended``: it ended in another way before; asking twice is no error.
        ``not_pausable``: as ``check_pausable``.
    """
    with transaction.atomic():
        job = locks.lock_job(job.pk)
        status = JobStatus.PAUSED if is_pause else JobStatus.CANCELLED
        if job.status == status:
            return job
        _check_active(job)
        if is_pause:
            check_pausable(job)
        revoke_slice(job=job, reason=f"The job was {status}.", now=now)
        goes_on = f"at step {job.checkpoint_step}" if job.checkpoint_step else "at its beginning"
        end_job(
            job=job,
            status=status,
            kind=EventKind.OWNER_PAUSED if is_pause else EventKind.CANCELLED,
            message=f"Paused. It goes on {goes_on} once resumed." if is_pause else "Cancelled.",
            actor="system" if cancelled_by is None else cancelled_by.pk,
            now=now,
        )
    return job


def check_pausable(job: Job) -> None:
    """Refuse to pause a job that no other could go on with as it was sold.

    Raises
    ------
    Conflict
        ``not_pausable``.
    """
    why = ""
    if job.awaits_data:
        why = "Its data are being prepared. Pause it once it has them, or cancel it."
    elif job.start is not None and job.start.offer_id:
        why = "It began warm, by an offer that was for this job alone. Cancel it instead."
    if why:
        raise Conflict("not_pausable", f"This job cannot be paused. {why}")


def fail_job(*, job: Job, fault: FaultOf, reason: str, now: datetime) -> Job:
    """End a job as failed, such as one that no plan can finish. Twice is no error."""
    with transaction.atomic():
        job = locks.lock_job(job.pk)
        if job.status == JobStatus.FAILED:
            return job
        _check_active(job)
        revoke_slice(job=job, reason=reason, now=now)
        fail(job=job, fault=fault, reason=reason, now=now)
    return job


def mark_job_settled(*, job: Job, now: datetime, message: str = "", **data: Any) -> Job:
    """The money of an ended job was settled; marking twice changes nothing."""
    with transaction.atomic():
        job = locks.lock_job(job.pk)
        if job.settled_at is None:
            job.settled_at = now
            job.save(update_fields=["settled_at"])
            schedule_work(build_archiving(job, now=now))
            ended_at = job.finished_at or now
            record_stage(
                "job.settlement", bid_id=job.bid_id, since=ended_at, job=job.pk, status=job.status
            )
            record_event(
                job=job,
                kind=EventKind.SETTLED,
                message=message or "The money of this job is settled.",
                now=now,
                data=data,
            )
    return job


def add_job_event(
    *,
    job: Job,
    kind: EventKind,
    message: str,
    now: datetime,
    actor: str = "system",
    data: dict[str, Any] | None = None,
) -> JobEvent:
    """Add to a job's history something that another app did, such as a refund."""
    with transaction.atomic():
        return record_event(
            job=locks.lock_job(job.pk),
            kind=kind,
            message=message,
            now=now,
            actor=actor,
            data=data,
        )


def end_job(
    *,
    job: Job,
    status: JobStatus,
    kind: EventKind,
    message: str,
    now: datetime,
    actor: str = "system",
    data: dict[str, Any] | None = None,
) -> None:
    """Take a job to one of its ends and wake settlement. Call while holding the job.

    Raises
    ------
    WrongTransition
        A node still has a lease of it.
    """
    if Slice.objects.filter(job=job, status=SliceStatus.OPEN).exists():
        raise WrongTransition(f"{job.pk} ends while a node has a lease of it")
    set_status(job, status)
    job.finished_at = now
    job.needs_replan = False
    job.eta_at = None
    job.save()
    record_event(job=job, kind=kind, message=message, now=now, actor=actor, data=data)
    enqueue("auction.settle_finished")
    enqueue("jobs.slots_dispatch")


def fail(*, job: Job, fault: FaultOf, reason: str, now: datetime, actor: str = "system") -> None:
    """End a locked job as failed."""
    job.fault = fault
    job.failure_reason = reason[:1000]
    end_job(
        job=job,
        status=JobStatus.FAILED,
        kind=EventKind.FAILED,
        message=reason,
        now=now,
        actor=actor,
        data={"fault": str(fault)},
    )


def revoke_slice(*, job: Job, reason: str, now: datetime) -> Slice | None:
    """Take the job's current lease back. Call while holding the job."""
    held = locks.lock_open_slice(job)
    if held is not None:
        step = find_believed_step(job, held, now=now)
        close_slice(held, status=SliceStatus.REVOKED, reason=reason, now=now, counted_step=step)
    return held


def close_slice(
    held: Slice,
    *,
    status: SliceStatus,
    reason: str,
    now: datetime,
    counted_step: int,
    reached_step: int = 0,
) -> None:
    """End a lease for good. Call while holding the slice.

    ``counted_step`` is the step up to which its work counts. What lies between it and
    ``reached_step`` is lost.

    Raises
    ------
    WrongTransition
        It ended before.
    """
    if held.status != SliceStatus.OPEN or status == SliceStatus.OPEN:
        raise WrongTransition(f"slice {held.pk} cannot go from {held.status} to {status}")
    held.status = status
    held.reason = reason[:1000]
    held.closed_at = now
    held.last_step = max(held.first_step, counted_step)
    held.steps_lost = max(0, reached_step - held.last_step)
    held.save(update_fields=["status", "reason", "closed_at", "result", "last_step", "steps_lost"])


def _check_active(job: Job) -> None:
    if not job.is_active:
        raise Conflict(
            "job_ended", f"This job has ended ({job.status}); nothing of it can be changed."
        )
