"""A job's whole state in one safetensors file; nothing is ever unpickled.

Tensors: ``param/<name>``, ``mean/<name>``, ``square/<name>``, ``row_losses``, ``metrics``, and with
early stopping ``best/<name>``, the weights of the lowest validation loss. The header's metadata
hold, as JSON, the step, the counts, the settings the run depends on and a checksum of the tensors.
Scheduler, random state and data position need no more: they are pure functions of settings and
step.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from workers.protocol.job_spec import JobSpec
from workers.protocol.wire import dumps, to_json
from workers.training.job import TrainingProgress

FORMAT = "finetender-checkpoint-1"


class CorruptCheckpointError(Exception):
    """The file is not a whole checkpoint."""


@dataclass(frozen=True, slots=True)
class TrainingState:
    """A job's state after an optimizer step, on the CPU."""

    job_id: str
    #: Digest of everything the run's numbers depend on.
    fingerprint: str
    progress: TrainingProgress
    params: dict[str, torch.Tensor]
    means: dict[str, torch.Tensor]
    squares: dict[str, torch.Tensor]
    row_losses: np.ndarray
    #: ``float64[rows, columns]``: the lines of ``metrics.csv`` so far, NaN where empty.
    metrics: np.ndarray
    #: The adapter at the lowest validation loss so far, where early stopping keeps it.
    best: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Of its tensors."""
        kinds = (self.params, self.means, self.squares, self.best)
        return sum(tensor.nbytes for kind in kinds for tensor in kind.values())


def fingerprint(spec: JobSpec, *, data_sha256: str) -> str:
    """What two slices must share for one to continue the other."""
    parts = [to_json(spec.adapter), to_json(spec.training), spec.base_model.name, data_sha256]
    parts.append(list(spec.skip_lines))
    if (warm := spec.warm_start) is not None:
        parts.append([warm.adapter.sha256, warm.scale, warm.steps, warm.target_loss])
    return f"{zlib.crc32(dumps(parts).encode()):08x}"


def save_checkpoint(checkpoint: TrainingState, path: Path) -> None:
    """Write atomically: a reader sees the old file or the whole new one.

    Raises
    ------
    OSError
        Such as a full disk; what was there before stays.
    """
    tensors = _tensors(checkpoint)
    metadata = {
        "format": FORMAT,
        "job_id": checkpoint.job_id,
        "fingerprint": checkpoint.fingerprint,
        "progress": json.dumps(asdict(checkpoint.progress)),
        "crc32": str(_crc32(tensors)),
    }
    write_atomically(path, save(tensors, metadata=metadata))


def load_checkpoint(path: Path) -> TrainingState:
    """Read and verify.

    Raises
    ------
    CorruptCheckpointError
        When the file is cut, altered or something else.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata.get("format") != FORMAT:
            raise CorruptCheckpointError(f"{path.name} is not a checkpoint of this version")
        if int(metadata["crc32"]) != _crc32(tensors):
            raise CorruptCheckpointError(f"{path.name} was altered: its checksum differs")
        stored = json.loads(metadata["progress"])
        # Figures that an earlier release wrote and this one does not have are left out.
        known = {field.name for field in fields(TrainingProgress)}
        progress = TrainingProgress(**{name: stored[name] for name in stored if name in known})
        return TrainingState(
            job_id=metadata["job_id"],
            fingerprint=metadata["fingerprint"],
            progress=progress,
            params=_group(tensors, "param/"),
            means=_group(tensors, "mean/"),
            squares=_group(tensors, "square/"),
            row_losses=tensors["row_losses"].numpy(),
            metrics=tensors["metrics"].numpy(),
            best=_group(tensors, "best/"),
        )
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise CorruptCheckpointError(f"{path.name} cannot be read: {error}") from error


def write_atomically(path: Path, content: bytes) -> None:
    """Temporary file, fsync, rename, fsync of the directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _tensors(checkpoint: TrainingState) -> dict[str, torch.Tensor]:
    tensors = {
        "row_losses": torch.from_numpy(checkpoint.row_losses),
        "metrics": torch.from_numpy(checkpoint.metrics),
    }
    for prefix, group in (
        ("param/", checkpoint.params),
        ("mean/", checkpoint.means),
        ("square/", checkpoint.squares),
        ("best/", checkpoint.best),
    ):
        for name, tensor in group.items():
            tensors[prefix + name] = tensor
    return tensors


def _crc32(tensors: Mapping[str, torch.Tensor]) -> int:
    checksum = 0
    for name in sorted(tensors):
        checksum = zlib.crc32(name.encode(), checksum)
        checksum = zlib.crc32(tensors[name].contiguous().numpy().data, checksum)
    return checksum


def _group(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
