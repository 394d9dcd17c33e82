"""A job whose node says that its input is at fault: it waits until a fault check has decided."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from marketplace.common.queue import enqueue
from marketplace.fleet import services as fleet
from marketplace.jobs import locks
from marketplace.jobs.journal import record_event
from marketplace.jobs.models import EventKind, FaultOf, Job, JobStatus, Slice
from marketplace.jobs.services.life import fail
from marketplace.jobs.services.system_faults import count_system_fault, rewind_to_checkpoint
from marketplace.jobs.transitions import set_status


def note_user_fault(job: Job, held: Slice, reason: str, now: datetime) -> None:
    """Have the steps since the last checkpoint trained again. Call while holding both.

    One node alone is not believed: it would be paid for work that it did not do.
    """
    rewind_to_checkpoint(job)
    set_status(job, JobStatus.MOVING)
    job.awaits_fault_check = True
    job.save()
    record_event(
        job=job,
        kind=EventKind.FAULT,
        message=f"Node {held.node.name} finds fault with the input: {reason} It is tried again.",
        now=now,
        actor=held.node_id,
        data={"node": held.node_id, "checkpoint_step": job.checkpoint_step},
    )
    enqueue("checks.choose")


def decide_user_fault(*, slice_id: str, is_confirmed: bool | None, now: datetime) -> None:
    """End a job whose input is at fault, or let it go on; deciding twice changes nothing.

    ``is_confirmed``: what the steps came to that were trained again; ``None``: no node could.
    """
    held = Slice.objects.select_related("node").get(pk=slice_id)
    with transaction.atomic():
        job = locks.lock_job(held.job_id)
        if not job.is_active or not job.awaits_fault_check:
            return
        job.awaits_fault_check = False
        job.save(update_fields=["awaits_fault_check"])
        if is_confirmed:
            fail(job=job, fault=FaultOf.USER, reason=held.reason, now=now, actor=held.node_id)
            return
        reason = "No node could train the last steps again."
        if is_confirmed is False:
            fleet.note_node_fault(node=held.node, now=now)
            reason = f"The fault that node {held.node.name} found with the input is none."
        record_event(
            job=job,
            kind=EventKind.FAULT,
            message=f"{reason} The job goes on from step {job.checkpoint_step}.",
            now=now,
            data={"node": held.node_id, "checkpoint_step": job.checkpoint_step},
        )
        count_system_fault(job, reason, now)
