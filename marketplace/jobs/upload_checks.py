"""Checking what nodes upload before anyone else loads it: checkpoints and adapters.

Nothing is unpacked to disk and nothing is ever unpickled.
"""

from __future__ import annotations

import json
from typing import IO

from marketplace.common.errors import UserError
from marketplace.fleet.selectors import get_model_shape
from marketplace.jobs.models import Artifact, Job
from workers.protocol.adapter_check import AdapterError, check_weights

#: A header of about 16,000 tensors; more is refused before it is read.
_HEADER_BYTES_MAX = 2 * 1024 * 1024
#: Bytes of the pointer before a safetensors header.
_POINTER_BYTES = 8


def check_safetensors(file: IO[bytes], *, size: int, what: str) -> None:
    """Refuse what is not a whole safetensors file; leaves the file where the header ends.

    The format: eight bytes of header length, little-endian; a JSON object that gives each tensor's
    place; then the tensors, to the end of the file.

    Raises
    ------
    UserError
        ``invalid_checkpoint``.
    """

    def refuse(reason: str) -> UserError:
        return UserError("invalid_checkpoint", f"{what} is no safetensors file: {reason}.")

    length = int.from_bytes(file.read(_POINTER_BYTES), "little")
    if not 2 <= length <= min(_HEADER_BYTES_MAX, size - _POINTER_BYTES):
        raise refuse("its header does not fit")
    try:
        header = json.loads(file.read(length))
    except (ValueError, RecursionError):
        raise refuse("its header is not JSON") from None
    if not isinstance(header, dict):
        raise refuse("its header is not an object")
    end = 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
        if (
            not isinstance(offsets, list)
            or len(offsets) != 2
            or not all(isinstance(at, int) and not isinstance(at, bool) for at in offsets)
            or not 0 <= offsets[0] <= offsets[1]
        ):
            raise refuse("a tensor has no place in it")
        end = max(end, offsets[1])
    if header.keys() <= {"__metadata__"}:
        raise refuse("it holds no tensor")
    if end != size - _POINTER_BYTES - length:
        raise refuse("its tensors and its length disagree, as if cut off")


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
    others = Artifact.everything.filter(weights_sha256=digest).exclude(job=job)
    return any(
        (other.job.zone_id, other.job.dataset.sha256) != (job.zone_id, job.dataset.sha256)
        or other.job.terms.adapter != job.terms.adapter
        or other.job.terms.training != job.terms.training
        for other in others.select_related("job__dataset")
    )
