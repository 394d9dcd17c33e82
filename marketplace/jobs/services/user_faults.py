"""A job whose node says that its input is at fault: it waits until a fault check has decided."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from marketplace.common.queue import enqueue
from marketplace.fleet import services as fleet
from marketplace.jobs import locks
from marketplace.jobs.journal import record_event
from marketplace.jobs.models import EventKind, FaultOf, Job, JobStatus, Slice, SliceStatus
from marketplace.jobs.selectors import find_unsuspected_step, list_blames
from marketplace.jobs.services.life import fail
from marketplace.jobs.services.system_faults import count_system_fault, rewind_to_checkpoint
from marketplace.jobs.services.uploads import discard_checkpoints_after, discard_checkpoints_of
from marketplace.jobs.transitions import set_status

#: As often as this a job's input may be blamed and not be found at fault.
BLAMES_MAX = 2


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


def decide_user_fault(
    *, slice_id: str, is_confirmed: bool | None, now: datetime, covered_step: int | None = None
) -> None:
    """End a job whose input is at fault, or let it go on; deciding twice changes nothing.

    Parameters
    ----------
    is_confirmed
        What the steps came to that were trained again; ``None``: nobody knows.
    covered_step
        Up to which step somebody who may be believed trained again what the provider did which
        blames the input; ``None``: not all of it. What was not does not count.
    """
    held = Slice.objects.select_related("node").get(pk=slice_id)
    with transaction.atomic():
        job = locks.lock_job(held.job_id)
        if not job.is_active or not job.awaits_fault_check:
            return
        job.awaits_fault_check = False
        job.save(update_fields=["awaits_fault_check"])
        if is_confirmed:
            _discount_work(job, covered_step=covered_step or 0)
            fail(job=job, fault=FaultOf.USER, reason=held.reason, now=now, actor=held.node_id)
            return
        reason = "Nobody knows whether the input is at fault."
        if is_confirmed is None:
            held.is_excused = True
            held.save(update_fields=["is_excused"])
        else:
            fleet.note_node_fault(node=held.node, now=now)
            # They may be what the steps failed on: the next node would blame the input, too.
            if covered_step is not None and discard_checkpoints_of(job, held.node):
                job.save(update_fields=["checkpoint_step"])
                rewind_to_checkpoint(job)
            reason = f"The fault that node {held.node.name} found with the input is none."
        record_event(
            job=job,
            kind=EventKind.FAULT,
            message=f"{reason} The job goes on from step {job.checkpoint_step}.",
            now=now,
            data={"node": held.node_id, "checkpoint_step": job.checkpoint_step},
        )
        blames = list_blames(job).count()
        if blames < BLAMES_MAX:
            count_system_fault(job, reason, now)
            return
        _discount_work(job, covered_step=0)
        reason = f"Given up after nodes blamed its input {blames} times; the last: {reason}"
        fail(job=job, fault=FaultOf.SYSTEM, reason=reason, now=now)


def _discount_work(job: Job, *, covered_step: int) -> None:
    """Count of those who blame the input what others have, and no step after that.

    Their checkpoints of later steps go: an owner who has settings diverge late would have them for
    the fee alone.
    """
    step = max(find_unsuspected_step(job), covered_step)
    providers = list(list_blames(job).values_list("node__provider", flat=True))
    own = job.slices.filter(node__provider__in=providers, last_step__gt=step)
    # What another run of the job finished stays.
    for held in own.exclude(status=SliceStatus.FINISHED):
        kept = max(held.first_step, step)
        held.steps_lost += held.last_step - kept
        held.last_step = kept
        held.save(update_fields=["steps_lost", "last_step"])
    discard_checkpoints_after(job, step, providers)
