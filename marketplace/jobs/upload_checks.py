"""Checking what nodes upload before anyone else loads it: checkpoints and adapters.

Nothing is unpacked to disk and nothing is ever unpickled.
"""

from __future__ import annotations

from typing import IO

from django.db.models import Q

from marketplace.common.errors import UserError
from marketplace.fleet.selectors import get_model_shape
from marketplace.jobs.models import Artifact, Job
from workers.protocol.adapter_check import AdapterError, check_weights
from workers.protocol.safetensors_header import HeaderError, read_header


def check_checkpoint(file: IO[bytes], *, size: int) -> None:
    """Refuse what is not a whole safetensors file.

    Raises
    ------
    UserError
        ``invalid_checkpoint``.
    """
    try:
        read_header(file, size=size)
    except HeaderError as error:
        raise UserError(
            "invalid_checkpoint", f"The checkpoint is no safetensors file: {error}."
        ) from None


def check_adapter(file: IO[bytes], *, size: int, job: Job) -> str:
    """Refuse what is not the trained weights that the job asks for; their digest.

    Raises
    ------
    UserError
        ``invalid_adapter``: other tensors than the job's, values that are not finite, or an
        adapter that was not trained or is another job's.
    """
    try:
        shape = get_model_shape(job.zone)
        digest = check_weights(file, size=size, shape=shape, adapter=job.terms.adapter)
    except AdapterError as error:
        raise UserError("invalid_adapter", f"The adapter cannot be taken: {error}.") from None
    if _is_copy(job, digest):
        raise UserError(
            "invalid_adapter", "The adapter cannot be taken: another job's result has its weights."
        )
    return digest


def _is_copy(job: Job, digest: str) -> bool:
    """Whether weights are another job's, of other data or settings.

    Equal data and settings give equal weights on the same kind of machine.
    """
    # An earlier step of other jobs may well have the weights of a shorter job's last one. Of
    # checkpoints it is the one that the job began with that must not come back.
    counted = Q(checkpoint=None)
    if job.start is not None:
        counted |= Q(pk=job.start.artifact_id)
    others = Artifact.everything.filter(counted, weights_sha256=digest).exclude(job=job)
    return any(
        (other.job.zone_id, other.job.dataset.sha256) != (job.zone_id, job.dataset.sha256)
        or other.job.terms.adapter != job.terms.adapter
        or other.job.terms.training != job.terms.training
        for other in others.select_related("job__dataset")
    )
