"""Fault checks: whether a job's input is at fault, as its node says.

What follows the job's last checkpoint is trained again by a node of a provider that has no part in
the job; where no such node is there, by one of the same provider's. Where the same steps end in a
fault of the input, the job ends as its owner's doing. The nodes are paid up to the last checkpoint,
so that saying so earns a node nothing.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from marketplace.checks.checkers import leave_out_friends
from marketplace.checks.models import FaultCheck
from marketplace.checks.verdicts import PAY_SHARE, pay_for_units
from marketplace.checks.weights import estimate_time
from marketplace.fleet.models import Node
from marketplace.fleet.selectors import list_trusted_nodes
from marketplace.jobs.errands import ErrandHandler, build_blob_ref
from marketplace.jobs.models import ErrandKind, Job, SliceStatus
from marketplace.jobs.plans import build_whole_job
from marketplace.jobs.selectors import (
    Blob,
    find_idlest_node,
    find_job_blob,
    list_job_checkpoints,
)
from marketplace.jobs.services import decide_user_fault
from marketplace.jobs.work import load_work_plan
from workers.protocol.errands import PATH_ERRAND_BLOB
from workers.protocol.fault_checks import FaultCheckResult, FaultCheckTask
from workers.protocol.job_spec import CheckpointRef

#: Of a few steps; more of them have longer.
ANSWER_WITHIN = timedelta(minutes=5)
#: The job waits meanwhile: it then goes on without a decision.
GIVEN_UP_AFTER = timedelta(minutes=10)
#: Steps by which a device may come to a fault later than another one.
STEPS_LATER = 8


class FaultCheckErrands(ErrandHandler[FaultCheck]):
    kind = ErrandKind.FAULT
    model = FaultCheck
    related = ("job__dataset", "job__validation_dataset", "slice__node__provider")
    result_type = FaultCheckResult

    def is_ready(self, errand: FaultCheck, *, now: datetime) -> bool:
        """A job that its owner has cancelled meanwhile needs none."""
        if not errand.job.is_active:
            errand.gives_up_at = now
        return errand.job.is_active

    def choose_node(self, errand: FaultCheck, *, now: datetime) -> Node | None:
        """A friend of the owner's or of the node's is not asked, but for the provider itself."""
        there = list_trusted_nodes(errand.zone, verified_only=errand.verified_only)
        of_provider = there.filter(provider=errand.checked_node.provider_id)
        for nodes in (leave_out_friends(errand, there), of_provider):
            found = find_idlest_node(nodes, last_asked_id=errand.node_id, now=now)
            if found is not None:
                return found
        return None

    def compute_patience(self, errand: FaultCheck) -> timedelta:
        assert errand.node is not None
        needed = estimate_time(errand, errand.node, until_step=errand.until_step)
        return max(ANSWER_WITHIN, needed)

    def build_task(self, errand: FaultCheck) -> FaultCheckTask:
        path = PATH_ERRAND_BLOB.replace("{token}", errand.token)
        newest = list_job_checkpoints(errand.job).first()
        resume_from = None
        if newest is not None:
            blob = build_blob_ref(errand, newest.pk, newest)
            resume_from = CheckpointRef(blob=blob, step=newest.step)
        spec = build_whole_job(errand.zone, errand.job, blob_path=path, job_id=errand.pk)
        return FaultCheckTask(spec, errand.until_step, resume_from)

    def find_blob(self, errand: FaultCheck, name: str) -> Blob | None:
        return find_job_blob(errand.job, name)

    def accept(self, errand: FaultCheck, found: FaultCheckResult, *, now: datetime) -> bool:
        errand.found_fault = bool(found.fault)
        decide_user_fault(slice_id=errand.slice_id, is_confirmed=errand.found_fault, now=now)
        return True

    def fail(self, errand: FaultCheck, *, now: datetime) -> None:
        decide_user_fault(slice_id=errand.slice_id, is_confirmed=None, now=now)

    def pay(self, errand: FaultCheck, *, now: datetime) -> int:
        """Pay for the steps; who repeats its own claim is paid nothing for it.

        How many steps they are is what the checked node said, which may be the checker's friend.
        """
        assert errand.node is not None
        if errand.node.provider_id == errand.checked_node.provider_id:
            return 0
        units = load_work_plan(errand.job).count_between(errand.from_step, errand.until_step)
        most = math.floor(errand.job.price_micros * PAY_SHARE)
        return pay_for_units(errand, units=units, most_micros=most, now=now)


def open_fault_checks(*, now: datetime) -> int:
    """Have the steps trained again after which nodes blamed their jobs' input; how many jobs."""
    opened = 0
    for job in Job.objects.filter(awaits_fault_check=True, status__in=Job.ACTIVE):
        failed = job.slices.filter(status=SliceStatus.FAILED)
        held = failed.latest("closed_at", "pk")
        said = min(held.result["step"], load_work_plan(job).total_steps)
        _, is_new = FaultCheck.objects.get_or_create(
            kind=ErrandKind.FAULT,
            key=held.pk,
            defaults={
                "zone_id": job.zone_id,
                "verified_only": job.verified_only,
                "job": job,
                "slice": held,
                "from_step": job.checkpoint_step,
                "until_step": max(said, job.checkpoint_step) + STEPS_LATER,
                "created_at": now,
                "gives_up_at": now + GIVEN_UP_AFTER,
            },
        )
        opened += is_new
    return opened
