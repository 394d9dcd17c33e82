"""Models that jobs made, as names say them: the finished adapter, and that of each checkpoint.

A checkpoint holds more than an adapter, in an order of its own. The first request that uses one as
a model has its adapter written, and from then on it is an adapter like any other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from django.core.files.storage import default_storage
from django.db import transaction

from marketplace.accounts.models import Deletion, Organisation, Subject
from marketplace.common.errors import Conflict, NotFound
from marketplace.common.ids import ULID_LENGTH, new_id
from marketplace.fleet.selectors import get_model_shape
from marketplace.jobs.adapter_files import compose_adapter, spool_checkpoint_weights
from marketplace.jobs.locks import lock_job
from marketplace.jobs.models import Artifact, Checkpoint, Job
from marketplace.jobs.selectors import list_continuable_jobs, list_job_checkpoints
from marketplace.jobs.spooling import store_file
from workers.protocol.adapter_check import AdapterError, check_weights
from workers.protocol.weight_sketch import WeightsUnreadable

#: Checkpoints of a job whose adapters are kept, because they were used as models: each costs a
#: file. Those of checkpoints that are gone count too, until ``delete_checkpoint_models``.
MODELS_KEPT = 8
#: Of a model's name, before the step of a checkpoint.
AT_STEP = ":ckpt-step-"
#: As ``/v1`` names them: the zone, the organisation and a suffix stand before what says which.
_LONG_NAME = re.compile(
    rf"ft:(?:.{{0,200}}:)?(?:ftjob-)?([0-9a-hjkmnp-tv-z]{{{ULID_LENGTH}}}(?:{AT_STEP}[0-9]{{1,9}})?)",
    re.DOTALL,
)
_NAME = re.compile(rf"([^:\0]{{1,40}})(?:{AT_STEP}([0-9]{{1,9}}))?")


@dataclass(frozen=True, slots=True)
class TunedModel:
    """A model that a job made."""

    job: Job
    #: ``None``: the finished adapter.
    checkpoint: Checkpoint | None = None

    @property
    def name(self) -> str:
        """The job's id, and the step of a checkpoint; ``find_tuned_model`` reads it."""
        return self.job.pk + ("" if self.checkpoint is None else f"{AT_STEP}{self.checkpoint.step}")

    def find_artifact(self) -> Artifact | None:
        """The adapter's file; ``None``: that of the checkpoint is not written yet."""
        if self.checkpoint is None:
            return Artifact.objects.get(job=self.job)
        return _find_written(self.checkpoint)

    def take_artifact(self, *, now: datetime) -> Artifact:
        """Give the adapter's file; that of a checkpoint is written when it is first taken.

        Call outside of a transaction, and once money and rights were looked at: writing reads the
        whole checkpoint.

        Raises
        ------
        NotFound
            ``unknown_checkpoint``: it was deleted, or replaced by a newer one, meanwhile.
        Conflict
            ``unusable_checkpoint``: it does not hold the job's adapter;
            ``too_many_checkpoint_models``.
        UserError
            ``base_unreachable`` (503).
        """
        found = self.find_artifact()
        if found is None and self.checkpoint is not None:
            found = _write_artifact(self.checkpoint, now=now)
        assert found is not None
        return found


def shorten_model_name(name: str) -> str | None:
    """The name that ``find_tuned_model`` reads, of ``ft:`` and a job or of a name of ``/v1``.

    ``None``: it is the name of no model that a job made.
    """
    found = _LONG_NAME.fullmatch(name)
    return None if found is None else f"ftjob-{found[1]}"


def find_tuned_model(name: str, *, organisation: Organisation) -> TunedModel | None:
    """Find an organisation's model by ``JOB`` or ``JOB:ckpt-step-N``.

    A job that has not ended, or ended without an adapter, has the models of its checkpoints.
    """
    read = _NAME.fullmatch(name)
    if read is None:
        return None
    if read[2] is None:
        done = list_continuable_jobs(organisation).filter(pk=read[1])
        job = done.select_related("zone", "organisation").first()
        return None if job is None else TunedModel(job)
    jobs = Job.objects.filter(pk=read[1], organisation=organisation)
    job = jobs.select_related("zone", "organisation").first()
    if job is None or _is_deleted(job):
        return None
    checkpoint = list_job_checkpoints(job).filter(step=int(read[2])).first()
    return None if checkpoint is None else TunedModel(job, checkpoint)


def _is_deleted(job: Job) -> bool:
    asked = Deletion.objects.filter(subject__in=[Subject.ADAPTER, Subject.JOB], subject_id=job.pk)
    return asked.exists()


def _find_written(checkpoint: Checkpoint) -> Artifact | None:
    return Artifact.everything.filter(checkpoint=checkpoint, deleted_at=None).first()


def _write_artifact(checkpoint: Checkpoint, *, now: datetime) -> Artifact:
    job = Job.objects.select_related("zone", "dataset").get(pk=checkpoint.job_id)
    checkpoint.job = job
    artifact = Artifact(
        job=job, checkpoint=checkpoint, slice_id=checkpoint.slice_id, created_at=now
    )
    _check_room(job)
    try:
        with spool_checkpoint_weights(checkpoint) as weights:
            shape, adapter = get_model_shape(job.zone), job.terms.adapter
            # By its digest a node is found out that hands these weights back as its own work.
            artifact.weights_sha256 = check_weights(
                weights.file, size=weights.bytes, shape=shape, adapter=adapter
            )
            path = f"jobs/{job.pk}/adapters/{new_id('art')}.zip"
            with (
                compose_adapter(job, weights, checkpoint=checkpoint) as made,
                store_file(path, made.file) as name,
                transaction.atomic(),
            ):
                if _is_deleted(lock_job(job.pk)) or not _is_current(checkpoint):
                    raise FileNotFoundError(checkpoint.file.name)
                # Another request may have written it meanwhile.
                if (first := _find_written(checkpoint)) is not None:
                    default_storage.delete(name)
                    return first
                _check_room(job)
                artifact.file.name, artifact.sha256, artifact.bytes = name, made.sha256, made.bytes
                artifact.save(force_insert=True)
    except FileNotFoundError:
        raise NotFound("unknown_checkpoint", "This checkpoint is gone.", param="model") from None
    except (AdapterError, WeightsUnreadable):
        # What is wrong may name tensors as a node did, and no text of a node reaches an owner.
        raise Conflict(
            "unusable_checkpoint",
            f"The checkpoint of step {checkpoint.step} does not hold the job's trained adapter.",
            param="model",
        ) from None
    return artifact


def _check_room(job: Job) -> None:
    models = Artifact.everything.filter(job=job).exclude(checkpoint=None)
    if models.exclude(file="").count() >= MODELS_KEPT:
        raise Conflict(
            "too_many_checkpoint_models",
            f"{MODELS_KEPT} checkpoints of this job are used as models, which is the most; one "
            "that a newer took the place of counts for a day after its last use. Use one of "
            "them or the finished model, or fetch the checkpoint's file.",
            param="model",
        )


def _is_current(checkpoint: Checkpoint) -> bool:
    return Checkpoint.objects.filter(pk=checkpoint.pk, file=checkpoint.file.name).exists()
