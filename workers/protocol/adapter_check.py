"""Whether a finished adapter is what its job demands: names, shapes, finite values, trained.

The market calls ``check_weights`` on a node's upload before it pays. It needs to know the
base model's ``ModelShape`` (read from ``config.json`` when a zone is opened), the job's
``AdapterSpec`` and, for classification, nothing more: the number of labels is the owner's data's,
and the head's tensors must agree with each other.
"""

from __future__ import annotations

import hashlib
import math
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import IO

from workers.protocol.adapter_names import MAGNITUDE, PEFT_PREFIX, PROMPT, name_owners
from workers.protocol.job_bytes import find_adapted
from workers.protocol.job_spec import AdapterKind, AdapterSpec
from workers.protocol.model_shape import ModelShape
from workers.protocol.safetensors_header import HeaderError, TensorEntry, read_header

#: The one file of an adapter that nodes make.
WEIGHTS_NAME = "adapter_model.safetensors"
#: Labels an encoder's head may tell apart.
LABELS_MAX = 10_000
#: No value of a tuned prompt comes near it; a larger one is broken, or meant to break something.
PROMPT_PEAK_MAX = 1e3
_CHUNK_BYTES = 1024 * 1024


class AdapterError(ValueError):
    """The adapter is not what the job demands; the text is a clause without a full stop."""


def check_weights(file: IO[bytes], *, size: int, shape: ModelShape, adapter: AdapterSpec) -> str:
    """Refuse tensors of other names, types or shapes, values not finite, and untrained adapters.

    Parameters
    ----------
    file : binary file
        A safetensors file, read once from its beginning to its end.
    size : int
        Its bytes.

    Returns
    -------
    str
        SHA-256 in hex of names and values, however the file is laid out.

    Raises
    ------
    AdapterError
    """
    try:
        entries = read_header(file, size=size)
    except HeaderError as error:
        raise AdapterError(f"{WEIGHTS_NAME} is no safetensors file: {error}") from None
    check_tensors(entries, shape=shape, adapter=adapter)
    is_trained = adapter.kind is not AdapterKind.LORA
    digests: dict[str, bytes] = {}
    for entry in entries:
        peak, digests[entry.name] = _read_values(file, entry)
        if not math.isfinite(peak):
            raise AdapterError(f"{entry.name} holds values that are not finite numbers")
        if entry.name == PROMPT and peak > PROMPT_PEAK_MAX:
            raise AdapterError(f"{entry.name} holds values above {PROMPT_PEAK_MAX:g}")
        # The second matrix begins at zero: where all of them are still there, nothing was learnt.
        is_trained = is_trained or (entry.name.endswith(_SECOND) and peak != 0.0)
    if not is_trained:
        raise AdapterError("it was not trained: its second matrices are zero")
    whole = hashlib.sha256()
    for name in sorted(digests):
        whole.update(name.encode() + b"\0" + digests[name])
    return whole.hexdigest()


_FIRST, _SECOND = ".lora_A.weight", ".lora_B.weight"


def list_adapter_tensors(
    shape: ModelShape, adapter: AdapterSpec, *, labels: int = 0
) -> dict[str, tuple[int, ...]]:
    """PEFT's names and shapes of the tensors that a job's adapter has.

    Parameters
    ----------
    labels : int
        Classes of an encoder's head.

    Raises
    ------
    SettingError
        When a target module is no projection of the model.
    """
    tensors: dict[str, tuple[int, ...]] = {}
    if adapter.kind is AdapterKind.SOFT_PROMPT:
        tensors[PROMPT] = (adapter.virtual_tokens, shape.hidden_size)
    else:
        adapted = find_adapted(shape, adapter.target_modules)
        owners = name_owners(part.name for part in adapted if part.experts > 1)
        for part in adapted:
            name, rank = owners.get(part.name, part.name), adapter.rank * part.experts
            tensors[f"{PEFT_PREFIX}{name}{_FIRST}"] = (rank, part.inputs)
            tensors[f"{PEFT_PREFIX}{name}{_SECOND}"] = (part.outputs, rank)
            if adapter.dora:
                tensors[f"{PEFT_PREFIX}{name}.{MAGNITUDE}_vector"] = (part.outputs,)
    if shape.encoder:
        for name, head_shape in shape.list_head_shapes(labels=labels).items():
            tensors[f"{PEFT_PREFIX}{name}"] = head_shape
    return tensors


def check_tensors(
    entries: Sequence[TensorEntry], *, shape: ModelShape, adapter: AdapterSpec
) -> None:
    """Refuse other names, shapes or types of tensors than an adapter has.

    Raises
    ------
    AdapterError
    """
    found = {entry.name: entry for entry in entries}
    labels = _find_labels(found, shape) if shape.encoder else 0
    wanted = list_adapter_tensors(shape, adapter, labels=labels)
    for name, sizes in wanted.items():
        entry = found.get(name)
        if entry is None:
            raise AdapterError(f"it lacks {name}")
        if entry.shape != sizes:
            raise AdapterError(
                f"{name} is {_format(entry.shape)} and the job's is {_format(sizes)}"
            )
        if entry.dtype != "F32":
            raise AdapterError(f"{name} is of type {entry.dtype}, not F32")
    for name in found:
        if name not in wanted:
            raise AdapterError(f"it holds {name[:120]!r}, which the job's adapter does not have")


def _find_labels(found: Mapping[str, TensorEntry], shape: ModelShape) -> int:
    """How many labels the uploaded head tells apart; all of its tensors are compared with it."""
    *_, bias = shape.list_head_shapes(labels=0)
    entry = found.get(f"{PEFT_PREFIX}{bias}")
    if entry is None or len(entry.shape) != 1 or not 2 <= entry.shape[0] <= LABELS_MAX:
        raise AdapterError("it has no classification head")
    return entry.shape[0]


def _read_values(file: IO[bytes], entry: TensorEntry) -> tuple[float, bytes]:
    """The largest absolute value of a tensor, not finite if one is not; and its digest."""
    peak, digest = 0.0, hashlib.sha256()
    left = entry.end - entry.start
    while left:
        chunk = file.read(min(left, _CHUNK_BYTES))
        if not chunk or len(chunk) % 4:
            raise AdapterError(f"{WEIGHTS_NAME} ends early")
        left -= len(chunk)
        digest.update(chunk)
        values = array("f", chunk)
        if sys.byteorder == "big":
            values.byteswap()
        # A sum of finite 32-bit numbers is finite in 64 bits; one that is not makes it so.
        if not math.isfinite(sum(values)):
            return math.inf, b""
        peak = max(peak, max(values), -min(values))
    return peak, digest.digest()


def _format(sizes: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in sizes) or "a single value"
