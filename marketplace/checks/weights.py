"""The weights that a node stored after the steps that are checked."""

from __future__ import annotations

import logging
import math
import secrets
from datetime import timedelta

from marketplace.checks.models import FaultCheck, SpotCheck
from marketplace.fleet.models import Node
from marketplace.jobs.models import Artifact, Checkpoint, Job
from marketplace.jobs.work import load_work_plan
from workers.protocol.weight_sketch import (
    Weights,
    WeightsUnreadable,
    read_adapter_weights,
    read_checkpoint_weights,
    sketch_weights,
)

log = logging.getLogger(__name__)

_SEED_BYTES = 16
#: How many times longer steps may take for a checker, which runs its own jobs beside them.
_PATIENCE = 2
#: Steps that take longer are too many to train again; their losses alone are compared.
LONGEST = timedelta(minutes=20)


def take_end(check: SpotCheck) -> bool:
    """Note what the node stored next after the steps' beginning; whether there is something.

    Made before anybody is asked, so that it cannot be made to fit. A file that cannot be read is
    weights that no training leads to.
    """
    if check.end_step is not None:
        return True
    end = _find_end(check)
    if end is None:
        return False
    check.sketch_seed = secrets.token_hex(_SEED_BYTES)
    check.end_step, check.end_sketch = end[0], _sketch(end[1], seed=check.sketch_seed)
    if check.file:
        with check.file.open("rb") as file:
            weights = read_checkpoint_weights(file, size=check.bytes)
            check.start_sketch = _read(weights, seed=check.sketch_seed)
    check.save(update_fields=["sketch_seed", "end_step", "end_sketch", "start_sketch"])
    return True


def estimate_time(check: SpotCheck | FaultCheck, checker: Node, *, until_step: int) -> timedelta:
    """How long a node may take to train the steps again beside its own jobs."""
    units = load_work_plan(check.job).count_between(check.from_step, until_step)
    zone = check.zone
    slots = units * zone.jobs_per_node / checker.compute_capacity
    return timedelta(seconds=math.ceil(_PATIENCE * slots * zone.slot_s))


def _find_end(check: SpotCheck) -> tuple[int, Checkpoint | Artifact] | None:
    stored = Checkpoint.objects.filter(slice=check.slice_id, step__gt=check.from_step)
    checkpoint = stored.exclude(file="").order_by("step").first()
    if checkpoint is not None:
        return checkpoint.step, checkpoint
    artifact = Artifact.objects.filter(slice=check.slice_id).select_related("job").first()
    if artifact is None or not _has_last_weights(artifact.job, check):
        return None
    return artifact.job.step, artifact


def _has_last_weights(job: Job, check: SpotCheck) -> bool:
    """Whether the adapter is that of the last step: early stopping keeps the best one's."""
    return job.best_step in (None, job.step) and job.step > check.from_step


def _sketch(stored: Checkpoint | Artifact, *, seed: str) -> list[float]:
    with stored.file.open("rb") as file:
        if isinstance(stored, Artifact):
            return _read(read_adapter_weights(file), seed=seed)
        return _read(read_checkpoint_weights(file, size=stored.bytes), seed=seed)


def _read(weights: Weights, *, seed: str) -> list[float]:
    try:
        found = sketch_weights(weights, seed=seed)
    except WeightsUnreadable as error:
        log.warning("weights cannot be compared: %s", error)
        return []
    return found if all(map(math.isfinite, found)) else []
