"""Whether an export's values are the base's with the adapter's changes in them, row by row.

``W' = W + s B A`` (Hu et al. 2021, section 4.1); with DoRA each output row of ``W'`` then has the
length that was learnt for it (Liu et al. 2024, equation 5). The market computes rows that no node
can foresee. A node cannot change a tensor of which no row is compared where the base model lies on
this machine: then each tensor has one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from marketplace.fleet.base_weights import StoredTensor, read_floats
from workers.protocol.export_check import ExportFileError, FoundTensor
from workers.protocol.gguf_head import ROPE_FACTORS, find_rope_factors, order_rows
from workers.protocol.job_spec import AdapterSpec

_PREFIX = "base_model.model."
#: Of a row's largest value: what rounding to a type and sums in another order may change.
_TOLERANCE = {"F64": 1e-5, "F32": 1e-5, "F16": 1e-3, "BF16": 8e-3, "Q8_0": 8e-3}
_Q8_BLOCK, _Q8_BYTES = 32, 34


@dataclass(frozen=True, slots=True)
class MergedRows:
    """Rows of a base model's tensors with an adapter in them."""

    base: Mapping[str, StoredTensor]
    #: Of the adapter, by PEFT's names.
    adapter: Mapping[str, StoredTensor]
    spec: AdapterSpec
    #: Whether projections keep their weights transposed (``Conv1D``).
    transposed: bool

    def compute(self, name: str, row: int) -> np.ndarray:
        """A row of a tensor by its name in the base model."""
        module = f"{_PREFIX}{name.removesuffix('.weight')}"
        down = self.adapter.get(f"{module}.lora_A.weight")
        if down is None:
            return self.base[name].read_row(row)
        if self.transposed:
            return self._merge(module, self.base[name].read().T, slice(None))[:, row]
        return self._merge(module, self.base[name].read_row(row)[None], slice(row, row + 1))[0]

    def _merge(self, module: str, weights: np.ndarray, rows: slice) -> np.ndarray:
        down = self.adapter[f"{module}.lora_A.weight"].read()
        up = self.adapter[f"{module}.lora_B.weight"]
        of_rows = up.read() if rows == slice(None) else up.read_row(rows.start)[None]
        merged = weights + np.float32(self.spec.scale) * (of_rows @ down)
        magnitude = self.adapter.get(f"{module}.lora_magnitude_vector")
        if magnitude is not None:
            lengths = np.linalg.norm(merged, axis=1, keepdims=True)
            merged = merged * (magnitude.read()[rows, None] / lengths)
        return merged


def compare_rows(
    file: IO[bytes],
    found: Mapping[str, FoundTensor],
    *,
    rows: MergedRows,
    names: Mapping[str, str],
    gguf_config: Mapping[str, Any] | None,
    most: int,
) -> None:
    """Compare a row of each of some tensors with what the market computes.

    Parameters
    ----------
    found
        Tensors of the file by the base model's names.
    names
        Names of tensors in the base model by the file's.
    gguf_config
        The base model's configuration, where the file has GGUF's order of rows.
    most
        Tensors compared, all if there are fewer.

    Raises
    ------
    ExportFileError
    """
    draw = random.SystemRandom()
    if gguf_config is not None and (factors := find_rope_factors(gguf_config)) is not None:
        _compare(ROPE_FACTORS, _read_row(file, found[ROPE_FACTORS], 0), factors, "F32")
    chosen = draw.sample(sorted(names), min(most, len(names)))
    for name in chosen:
        tensor, source = found[name], names[name]
        row = draw.randrange(tensor.shape[0] if len(tensor.shape) > 1 else 1)
        at = row
        if gguf_config is not None and len(tensor.shape) > 1:
            at = int(order_rows(np.arange(tensor.shape[0]), source, gguf_config)[row])
        wanted = rows.compute(source, at)
        if gguf_config is not None and len(tensor.shape) == 1:
            wanted = order_rows(wanted, source, gguf_config)
        _compare(name, _read_row(file, tensor, row), wanted, tensor.dtype)


def _compare(name: str, found: np.ndarray, wanted: np.ndarray, dtype: str) -> None:
    furthest = float(np.abs(found - wanted).max(initial=0.0))
    if furthest > _TOLERANCE[dtype] * float(np.abs(wanted).max(initial=0.0)) + 1e-6:
        raise ExportFileError(f"{name} is not the base's with the adapter in it")


def _read_row(file: IO[bytes], tensor: FoundTensor, row: int) -> np.ndarray:
    size = tensor.bytes // (tensor.shape[0] if len(tensor.shape) > 1 else 1)
    file.seek(tensor.at + row * size)
    content = file.read(size)
    if tensor.dtype != "Q8_0":
        return read_floats(content, tensor.dtype)
    blocks = np.frombuffer(content, np.uint8).reshape(-1, _Q8_BYTES)
    scales = blocks[:, :2].copy().view("<f2").astype("<f4")
    return (scales * blocks[:, 2:].view(np.int8)).reshape(-1)
