"""Fault checks: whether a job's input is at fault, as its node says.

What the blaming provider's nodes did since they took the job over is trained again by a node of a
provider that has no part in the job, which is drawn; where no such node is there, by one of the
same provider's. Where the same steps end in a fault of the input, the job ends as its owner's
doing. The blaming provider is paid up to the last checkpoint if a stranger, or a node of a verified
provider, has trained all of that again, and no further than the step where a verified provider's
node met the fault: the first one could go on with noise after it. Otherwise, as where it would take
too long, nothing of it is paid: what the node stored itself may be what the steps fail on. So
blaming the input earns a node no more than honest work does. What is not paid is not handed out
either: its checkpoints go, since settings that diverge late would else be a way to train for a fee.
A single word for the input counts against the node only from a verified provider, or its own;
otherwise a third one has to say the same.

The house rents no machine for a fault check: for one step's price, owners could have it pay a
machine's start each time. A zone's only provider has its own word count once the operator verifies
it.
"""

from __future__ import annotations

import logging
import math
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F, Sum

from marketplace.checks.checkers import (
    RELATED,
    build_confirmation,
    draw_checker,
    leave_out_friends,
)
from marketplace.checks.models import FaultCheck
from marketplace.checks.verdicts import PAY_SHARE, pay_for_units
from marketplace.checks.weights import LONGEST, estimate_time
from marketplace.fleet.models import Node
from marketplace.fleet.selectors import list_trusted_nodes
from marketplace.jobs.errands import ErrandHandler, build_blob_ref
from marketplace.jobs.models import ErrandKind, ErrandState, Job, SliceStatus
from marketplace.jobs.plans import build_whole_job
from marketplace.jobs.selectors import (
    Blob,
    find_job_blob,
    find_unsuspected_checkpoint,
    find_unsuspected_step,
    list_job_checkpoints,
)
from marketplace.jobs.services import decide_user_fault
from marketplace.jobs.work import load_work_plan
from workers.protocol.errands import PATH_ERRAND_BLOB
from workers.protocol.fault_checks import FaultCheckResult, FaultCheckTask
from workers.protocol.job_spec import CheckpointRef

log = logging.getLogger(__name__)

#: Of a few steps; more of them have longer.
ANSWER_WITHIN = timedelta(minutes=5)
#: The job waits meanwhile: it then goes on without a decision.
GIVEN_UP_AFTER = timedelta(minutes=10)
#: Steps by which a device may come to a fault later than another one.
STEPS_LATER = 8


class FaultCheckErrands(ErrandHandler[FaultCheck]):
    kind = ErrandKind.FAULT
    model = FaultCheck
    related = RELATED
    result_type = FaultCheckResult

    def is_ready(self, errand: FaultCheck, *, now: datetime) -> bool:
        """A job that its owner has cancelled meanwhile needs none."""
        if not errand.job.is_active:
            errand.gives_up_at = now
        return errand.job.is_active

    def choose_node(self, errand: FaultCheck, *, now: datetime) -> Node | None:
        """A friend of the owner's or of the node's is not asked, but for the provider itself.

        That one is asked where nobody else is there, and last: strangers may not want to answer.
        """
        there = list_trusted_nodes(errand.zone, verified_only=errand.verified_only)
        first = errand.confirms
        if first is not None:
            assert first.node is not None
            there = there.exclude(provider=first.node.provider_id)
        stranger = draw_checker(errand, leave_out_friends(errand, there), now=now)
        is_last = errand.attempts + 1 >= self.attempts_max
        if first is not None or (stranger is not None and not is_last):
            return stranger
        own = there.filter(provider=errand.checked_node.provider_id).select_related(
            "provider", "zone"
        )
        other = own.exclude(pk=errand.checked_node.pk)
        return (
            draw_checker(errand, other, now=now) or stranger or draw_checker(errand, own, now=now)
        )

    def compute_patience(self, errand: FaultCheck) -> timedelta:
        """Also choose where the steps begin, which is part of what a node is asked."""
        assert errand.node is not None
        errand.from_step = find_unsuspected_step(errand.job)
        needed = estimate_time(errand, errand.node, until_step=errand.until_step)
        if needed > LONGEST:
            errand.from_step = errand.job.checkpoint_step
            needed = estimate_time(errand, errand.node, until_step=errand.until_step)
        return max(ANSWER_WITHIN, needed)

    def build_task(self, errand: FaultCheck) -> FaultCheckTask:
        path = PATH_ERRAND_BLOB.replace("{token}", errand.token)
        start = find_unsuspected_checkpoint(errand.job)
        if errand.from_step > (start.step if start else 0):
            start = list_job_checkpoints(errand.job).first()
        resume_from = None
        if start is not None:
            blob = build_blob_ref(errand, start.pk, start)
            resume_from = CheckpointRef(blob=blob, step=start.step)
        spec = build_whole_job(errand.zone, errand.job, blob_path=path, job_id=errand.pk)
        return FaultCheckTask(spec, errand.until_step, resume_from)

    def find_blob(self, errand: FaultCheck, name: str) -> Blob | None:
        return find_job_blob(errand.job, name)

    def accept(self, errand: FaultCheck, found: FaultCheckResult, *, now: datetime) -> bool:
        assert errand.node is not None
        errand.found_fault = bool(found.fault)
        if errand.found_fault:
            step = errand.until_step if found.step is None else found.step
            errand.found_step = min(max(step, errand.from_step), errand.until_step)
        provider = errand.node.provider
        is_own = provider.pk == errand.checked_node.provider_id
        is_verified = provider.verified_at is not None
        decided: bool | None = errand.found_fault
        contradicts = errand.found_fault == (errand.confirms is not None)
        if contradicts and not (is_own or is_verified):
            if not errand.found_fault and self._ask_another(errand, now=now):
                return True
            decided = None
        is_covered = errand.from_step <= find_unsuspected_step(errand.job)
        # An owner's puppet could say that the first step fails, and so take the work unpaid.
        seen = errand.found_step if is_verified else None
        covered = errand.until_step if seen is None else seen + STEPS_LATER
        decide_user_fault(
            slice_id=errand.slice_id,
            is_confirmed=decided,
            covered_step=covered if is_covered and (is_verified or not is_own) else None,
            now=now,
        )
        return True

    def _ask_another(self, errand: FaultCheck, *, now: datetime) -> bool:
        """Have a third provider confirm that the input is sound; false where none is there."""
        second = build_confirmation(
            errand, now=now, until_step=errand.until_step, gives_up_at=now + GIVEN_UP_AFTER
        )
        if self.choose_node(second, now=now) is None:
            return False
        second.save(force_insert=True)
        return True

    def fail(self, errand: FaultCheck, *, now: datetime) -> None:
        decide_user_fault(slice_id=errand.slice_id, is_confirmed=None, now=now)

    def pay(self, errand: FaultCheck, *, now: datetime) -> int:
        """Pay for the steps; who repeats its own claim is paid nothing for it.

        How many steps they are is what the two nodes said, which may be friends; so all checks of a
        job together have a limit.
        """
        assert errand.node is not None
        if errand.node.provider_id == errand.checked_node.provider_id:
            return 0
        last = errand.until_step
        if errand.found_step is not None:
            # The one that failed was computed, too.
            last = min(last, errand.found_step + 1)
        units = load_work_plan(errand.job).count_between(errand.from_step, last)
        paid = FaultCheck.objects.filter(job=errand.job).aggregate(sum=Sum("paid_micros"))["sum"]
        most = max(0, math.floor(errand.job.price_micros * PAY_SHARE) - paid)
        return pay_for_units(errand, units=units, most_micros=most, now=now)


def is_confirmed_by_itself(job: Job) -> bool:
    """Whether a job's input was found at fault by the provider alone that blamed it."""
    found = FaultCheck.objects.filter(job=job, state=ErrandState.DONE, found_fault=True)
    return found.filter(node__provider=F("slice__node__provider")).exists()


def open_fault_checks(*, now: datetime) -> int:
    """Have the steps trained again after which nodes blamed their jobs' input; how many jobs."""
    opened = 0
    for job in Job.objects.filter(awaits_fault_check=True, status__in=Job.ACTIVE):
        try:
            with transaction.atomic():
                opened += _open_fault_check(job, now=now)
        except Exception:
            log.exception("the fault check of job %s could not be opened", job.pk)
    return opened


def _open_fault_check(job: Job, *, now: datetime) -> bool:
    held = job.slices.filter(status=SliceStatus.FAILED).latest("closed_at", "pk")
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
    return is_new
