"""An adapter's weights as a few hundred numbers that only who knows a seed can make.

A spot check compares the weights that a node stored with those that another came to. Whole adapters
are large, and a checker that were sent the other's could send it back. So the market draws a seed,
and both sides add each weight, with a sign drawn from the seed and the tensor's name, to one of
``BUCKETS`` sums (Charikar, Chen and Farach-Colton 2002, count sketch). The distance of two sketches
is that of the weights up to some 9 %.

Matrices that begin at zero (``lora_B``) have sums of their own, so that how far fresh weights have
moved is known without knowing what the others began with.
"""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import IO

import numpy as np
from numpy.typing import NDArray

from workers.protocol.adapter_check import WEIGHTS_NAME
from workers.protocol.adapter_names import PEFT_PREFIX, list_peft_names
from workers.protocol.safetensors_header import HeaderError, TensorEntry, read_header

#: Sums of each of the two groups of tensors.
BUCKETS = 256
#: Weights agree that lie within this share of the way that training moved them. Weights that were
#: not trained are at 1; the same steps in bfloat16 and in float32 are well within it.
TOLERANCE = 0.5
#: A way shorter than this share of the weights themselves says nothing: its steps were too small.
_LEAST_WAY = 1e-6

_PARAM = "param/"
_BEGINS_AT_ZERO = ".lora_B.weight"

Weights = Iterable[tuple[str, NDArray[np.float32]]]


class WeightsUnreadable(ValueError):
    """The file holds no weights that can be compared; the text says why."""


def sketch_weights(weights: Weights, *, seed: str) -> list[float]:
    """Give the sums of an adapter's weights, of those that begin at zero first.

    Parameters
    ----------
    weights : iterable of (str, float32[...])
        By PEFT's names, both matrices of a module with the rank first (``lay_out_weights``).
    seed : str
        Of one check.
    """
    sums = np.zeros((2, BUCKETS))
    for name, values in weights:
        flat = np.asarray(values, np.float64).ravel()
        signed = np.zeros(-(-len(flat) // BUCKETS) * BUCKETS)
        signed[: len(flat)] = flat * _draw_signs(f"{seed}|{name}", len(flat))
        sums[0 if name.endswith(_BEGINS_AT_ZERO) else 1] += signed.reshape(-1, BUCKETS).sum(axis=0)
    return [float(value) for value in sums.ravel()]


def _draw_signs(text: str, count: int) -> NDArray[np.float64]:
    """Plus and minus ones; the raw bits of the generator are the same in every release."""
    drawn = np.random.PCG64(int.from_bytes(hashlib.sha256(text.encode()).digest()[:16]))
    raw = np.asarray(drawn.random_raw(-(-count // 64)), "<u8")
    signs = np.unpackbits(raw.view(np.uint8), count=count).astype(np.float64)
    return 2.0 * signs - 1.0


def weights_agree(
    *, start: Sequence[float] | None, end: Sequence[float], found: Sequence[float]
) -> bool | None:
    """Tell whether stored weights are those that the same steps lead to.

    Parameters
    ----------
    start : sequence of float, optional
        Sketch of the checkpoint that the steps begin with; ``None``: fresh weights.
    end : sequence of float
        Of what was stored.
    found : sequence of float
        Of what the checker came to; another length is no sketch.

    Returns
    -------
    bool or None
        ``None``: nothing can be said.
    """
    if len(found) != 2 * BUCKETS or not all(map(math.isfinite, found)):
        return None
    came_to, stored = np.array(found), np.array(end)
    if not np.isfinite(stored).all():
        return False
    way = came_to[:BUCKETS] if start is None else came_to - np.array(start)
    moved = float(np.linalg.norm(way))
    if moved <= _LEAST_WAY * float(np.linalg.norm(came_to)):
        return None
    return float(np.linalg.norm(came_to - stored)) <= TOLERANCE * moved


def read_checkpoint_weights(file: IO[bytes], *, size: int) -> Weights:
    """Give the adapter in a checkpoint, tensor by tensor.

    Raises
    ------
    WeightsUnreadable
    """
    entries = _read_entries(file, size=size)
    own = [entry for entry in entries if entry.name.startswith(_PARAM)]
    shapes = {entry.name.removeprefix(_PARAM): entry.shape for entry in own}
    tensors = ((name.removeprefix(_PARAM), values) for name, values in _read_tensors(file, own))
    yield from lay_out_weights(tensors, shapes=shapes)


def lay_out_weights(tensors: Weights, *, shapes: Mapping[str, tuple[int, ...]]) -> Weights:
    """Give tensors that have a checkpoint's names and layout those of ``sketch_weights``.

    Parameters
    ----------
    shapes
        Of all of the adapter's tensors.
    """
    names = list_peft_names((name, len(shape)) for name, shape in shapes.items())
    for name, values in tensors:
        # of experts, [E, R, O]; a file has the experts of a rank side by side
        is_second = names[name].endswith(_BEGINS_AT_ZERO)
        yield names[name], values.swapaxes(0, 1) if is_second and values.ndim == 3 else values


def lay_out_peft(weights: Weights) -> Weights:
    """Give tensors as ``lay_out_weights`` lays them out the layout of PEFT's files."""
    for name, values in weights:
        # PEFT has no dimension for experts: those of a rank, or of an expert, stand side by side
        flat = values.reshape(-1, values.shape[-1]) if values.ndim == 3 else values
        yield name, flat.T if name.endswith(_BEGINS_AT_ZERO) else flat


def read_adapter_weights(file: IO[bytes]) -> Weights:
    """Give a finished adapter likewise.

    Raises
    ------
    WeightsUnreadable
    """
    try:
        with zipfile.ZipFile(file) as archive:
            content = archive.read(WEIGHTS_NAME)
    except (OSError, KeyError, RuntimeError, zipfile.BadZipFile) as error:
        raise WeightsUnreadable(f"the adapter cannot be read: {error}") from error
    opened = io.BytesIO(content)
    for name, values in _read_tensors(opened, _read_entries(opened, size=len(content))):
        yield name, values.T if name.endswith(_BEGINS_AT_ZERO) else values


def _read_entries(file: IO[bytes], *, size: int) -> tuple[TensorEntry, ...]:
    try:
        return read_header(file, size=size)
    except HeaderError as error:
        raise WeightsUnreadable(f"the file cannot be read: {error}") from error


def list_peft_tensors(file: IO[bytes], *, size: int) -> list[TensorEntry]:
    """List the tensors of a checkpoint's adapter as PEFT's files have them; reads no value.

    Raises
    ------
    WeightsUnreadable
    """
    entries = _read_entries(file, size=size)
    own = [
        replace(entry, name=entry.name.removeprefix(_PARAM))
        for entry in entries
        if entry.name.startswith(_PARAM)
    ]
    names = list_peft_names((entry.name, len(entry.shape)) for entry in own)
    return [replace(entry, name=names[entry.name], shape=_lay_out_shape(entry)) for entry in own]


def _lay_out_shape(entry: TensorEntry) -> tuple[int, ...]:
    """As ``lay_out_peft`` lays its values out."""
    *experts, width = entry.shape or (1,)
    flat = (math.prod(experts), width) if len(entry.shape) == 3 else entry.shape
    return flat[::-1] if entry.name.endswith(".lora_B") else flat


def _read_tensors(file: IO[bytes], entries: Iterable[TensorEntry]) -> Weights:
    """Those of a file, whose values begin where it is read."""
    begin = file.tell()
    for entry in entries:
        file.seek(begin + entry.start)
        content = file.read(entry.end - entry.start)
        if entry.dtype == "F32":
            yield entry.name, np.frombuffer(content, "<f4").reshape(entry.shape)
        elif entry.name.startswith((_PARAM, PEFT_PREFIX)):
            raise WeightsUnreadable(f"the weights are {entry.dtype} and not F32")
