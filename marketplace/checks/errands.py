"""Checks as errands: a node trains a few steps of another's job again, or measures its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from marketplace.checks.checkers import RELATED, find_checker
from marketplace.checks.fault_checks import FaultCheckErrands
from marketplace.checks.models import SpotCheck
from marketplace.checks.verdicts import judge_result, pay_checker
from marketplace.checks.weights import LONGEST, estimate_time, take_end
from marketplace.fleet.models import Node
from marketplace.jobs.errands import ErrandHandler, build_blob_ref, register_handler
from marketplace.jobs.models import Artifact, Dataset, ErrandKind, MetricPoint, SliceStatus
from marketplace.jobs.plans import build_job_spec
from marketplace.jobs.selectors import (
    DATASET_BLOB,
    VALIDATION_BLOB,
    Blob,
    get_finished_artifact,
)
from workers.protocol.checks import STEPS_MAX, CheckResult, CheckTask
from workers.protocol.errands import PATH_ERRAND_BLOB
from workers.protocol.job_spec import CheckpointRef, WarmStart

#: Within which a checker answers: it fetches the data and trains a few steps, or measures a result,
#: for which an owner's money waits.
ANSWER_WITHIN, SCORED_WITHIN = timedelta(minutes=5), timedelta(minutes=2)
#: A node stores a checkpoint within that; of one that does not, losses alone are compared.
WEIGHTS_WITHIN = timedelta(minutes=5)
#: A check whose steps are reported, and that no node could take, is given up after that.
GIVEN_UP_AFTER = timedelta(minutes=30)
#: Steps that the node reported, without which there is nothing to compare.
CLAIMS_LEAST = 2
CHECKPOINT_BLOB, ADAPTER_BLOB = "checkpoint", "adapter"


class CheckErrands(ErrandHandler[SpotCheck]):
    kind = ErrandKind.CHECK
    model = SpotCheck
    related = RELATED
    result_type = CheckResult

    def is_ready(self, errand: SpotCheck, *, now: datetime) -> bool:
        """Steps are ready once they are reported and, in time, weights are stored after them."""
        if errand.claimed_score is not None:
            return True
        errand.claimed = load_claims(errand)
        is_over = errand.slice.status != SliceStatus.OPEN
        # Weights are compared with what the node stores next; without it, losses are.
        has_end = take_end(errand)
        enough = errand.from_step + STEPS_MAX
        if errand.end_step is not None:
            enough = min(enough, errand.end_step)
        if len(errand.claimed) < CLAIMS_LEAST:
            if is_over:
                errand.gives_up_at = now
            return False
        waited = now - errand.created_at >= WEIGHTS_WITHIN
        if not is_over and (errand.claimed[-1][0] < enough or not (has_end or waited)):
            return False
        if errand.gives_up_at is None:
            errand.gives_up_at = now + GIVEN_UP_AFTER
            errand.save(update_fields=["gives_up_at"])
        return True

    def choose_node(self, errand: SpotCheck, *, now: datetime) -> Node | None:
        return find_checker(errand, now=now)

    def compute_patience(self, errand: SpotCheck) -> timedelta:
        if errand.claimed_score is not None:
            return SCORED_WITHIN
        if errand.end_step is None or errand.node is None:
            return ANSWER_WITHIN
        needed = estimate_time(errand, errand.node, until_step=errand.end_step)
        if needed > LONGEST:
            errand.end_step = None
            return ANSWER_WITHIN
        return max(ANSWER_WITHIN, needed)

    def build_task(self, errand: SpotCheck) -> CheckTask:
        blob_path = PATH_ERRAND_BLOB.replace("{token}", errand.token)
        spec = build_job_spec(errand.zone, errand.job, blob_path=blob_path, job_id=errand.pk)
        if errand.claimed_score is not None:
            result = get_finished_artifact(errand.job)
            start = WarmStart(adapter=build_blob_ref(errand, ADAPTER_BLOB, result))
            return CheckTask(replace(spec, warm_start=start), until_step=0, scores_start=True)
        resume_from = None
        if errand.file:
            blob = build_blob_ref(errand, CHECKPOINT_BLOB, errand)
            resume_from = CheckpointRef(blob=blob, step=errand.from_step)
        last = int(errand.claimed[-1][0])
        return CheckTask(
            job=spec,
            until_step=last if errand.end_step is None else errand.end_step,
            resume_from=resume_from,
            sketch_seed="" if errand.end_step is None else errand.sketch_seed,
        )

    def find_blob(self, errand: SpotCheck, name: str) -> Blob | None:
        files: Mapping[str, Dataset | SpotCheck | Artifact | None] = {
            DATASET_BLOB: errand.job.dataset,
            VALIDATION_BLOB: errand.job.validation_dataset,
            CHECKPOINT_BLOB: errand if errand.file else None,
        }
        found = files.get(name)
        if name == ADAPTER_BLOB and errand.claimed_score is not None:
            found = get_finished_artifact(errand.job)
        if found is None:
            return None
        return Blob(file=found.file, sha256=found.sha256, bytes=found.bytes)

    def accept(self, errand: SpotCheck, found: CheckResult, *, now: datetime) -> bool:
        return judge_result(errand, found, now=now)

    def pay(self, errand: SpotCheck, *, now: datetime) -> int:
        return pay_checker(errand, now=now)


register_handler(CheckErrands())
register_handler(FaultCheckErrands())


def load_claims(check: SpotCheck) -> list[list[float]]:
    """Steps and losses that the node itself reported, each step once."""
    points = MetricPoint.objects.filter(
        slice_id=check.slice_id,
        step__gt=check.from_step,
        step__lte=check.from_step + STEPS_MAX,
        train_loss__isnull=False,
    )
    claims = dict(points.order_by("pk").values_list("step", "train_loss"))
    return [[step, claims[step]] for step in sorted(claims)]
