"""The weights of an earlier adapter as those that a job begins with."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from workers.protocol.adapter_check import WEIGHTS_NAME
from workers.protocol.adapter_names import list_peft_names
from workers.training.faults import SystemFault, UserFault

_DAMAGE = (zipfile.BadZipFile, zlib.error, SafetensorError, KeyError, ValueError, OSError)


def load_start_values(
    path: Path, *, shapes: Mapping[str, tuple[int, ...]], scale: float
) -> dict[str, torch.Tensor]:
    """Read an adapter's zip into the tensors of a job.

    Parameters
    ----------
    path : Path
        Zip of an adapter's directory, as ``export_adapter`` writes it.
    shapes : mapping of str to tuple of int
        Names and shapes that the adapter must have (``PackedModel.list_shapes``).
    scale : float
        What the second matrices are multiplied by.

    Returns
    -------
    dict of str to Tensor
        In the engine's layout.

    Raises
    ------
    UserFault
        The adapter is of another shape than the job's.
    SystemFault
        The file is damaged, or its values are not finite.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            size = archive.getinfo(WEIGHTS_NAME).file_size
            if size > 2 * _count_bytes(shapes) + _HEADER_BYTES_MAX:
                raise _other_shape()
            found = load(archive.read(WEIGHTS_NAME))
    except _DAMAGE as error:
        raise SystemFault(f"The adapter to start from cannot be read: {error}.") from None
    names = list_peft_names((name, len(shape)) for name, shape in shapes.items())
    if found.keys() != set(names.values()):
        raise _other_shape()
    values: dict[str, torch.Tensor] = {}
    for name, shape in shapes.items():
        tensor = found[names[name]].to(torch.float32)
        if name.endswith(".lora_B"):
            tensor = tensor.T * scale
        *experts, rank, width = (1, *shape)[-3:]
        if len(shape) == 3 and tensor.shape == (experts[0] * rank, width):
            if name.endswith(".lora_B"):
                tensor = tensor.view(rank, experts[0], width).transpose(0, 1)
            tensor = tensor.reshape(shape)
        if tensor.shape != shape:
            raise _other_shape()
        if not bool(torch.isfinite(tensor).all()):
            raise SystemFault("The adapter to start from holds values that are not finite numbers.")
        values[name] = tensor.contiguous()
    return values


#: Names and shapes before the tensors of a safetensors file.
_HEADER_BYTES_MAX = 4 * 1024 * 1024


def _count_bytes(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(4 * math.prod(shape) for shape in shapes.values())


def _other_shape() -> UserFault:
    return UserFault(
        "The adapter to start from has another rank, other modules or other labels than this job. "
        "Use its settings, or start without it."
    )
