"""A job after a fault of the market: it goes on from its checkpoint, until there are too many."""

from __future__ import annotations

from datetime import datetime

from marketplace.jobs.models import FaultOf, Job, JobStatus
from marketplace.jobs.services.life import drop_start, fail, mark_for_replan
from marketplace.jobs.services.uploads import set_aside_checkpoint
from marketplace.jobs.transitions import set_status
from workers.protocol.starts import Drop

#: Faults of the market in a row, with no new checkpoint between, before a job is given up.
SYSTEM_FAULTS_MAX = 5
#: At this many faults in a row the newest checkpoint is suspected and set aside.
SYSTEM_FAULTS_SUSPICIOUS = 3


def count_system_fault(job: Job, reason: str, now: datetime) -> None:
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
        rewind_to_checkpoint(job)
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


def rewind_to_checkpoint(job: Job) -> None:
    """What was done after the newest checkpoint is to be done again."""
    job.eta_at = None
    if job.total_steps and job.step > job.checkpoint_step:
        job.samples_done = round(job.samples_done * job.checkpoint_step / job.step)
        job.epoch = job.epoch * job.checkpoint_step / job.step
        job.step = job.checkpoint_step
    job.save(update_fields=["eta_at", "samples_done", "epoch", "step"])
