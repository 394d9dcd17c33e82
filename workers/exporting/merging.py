"""A base model's weights with an adapter's changes in them, tensor by tensor.

``W' = W + s B A`` (Hu et al. 2021, section 4.1), with ``s`` as PEFT scales it. With DoRA each
output row of ``W'`` is then given the length that was learnt for it (Liu et al. 2024, equation 5).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from workers.protocol.exports import ExportError

_PREFIX = "base_model.model."
#: Of one number, by safetensors' names of types.
_TYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_INDEX = "model.safetensors.index.json"


class MergedWeights:
    """The tensors of a base model by name, each merged when it is asked for."""

    def __init__(
        self,
        files: Mapping[str, Any],
        config: Mapping[str, Any],
        tensors: dict[str, torch.Tensor],
        *,
        dtype: torch.dtype,
    ) -> None:
        #: What the base computes in. Weights that are stored in fewer bits are widened to it, so
        #: that small changes are not rounded away.
        self._dtype = dtype
        #: Names of the base's tensors and the open files that have them.
        self._files = files
        self._config = config
        self._tensors = tensors
        rank = float(config["r"])
        root = math.sqrt(rank) if config.get("use_rslora") else rank
        self._scale = float(config["lora_alpha"]) / root
        self._modules = {
            name.removeprefix(_PREFIX).removesuffix(".lora_A.weight")
            for name in tensors
            if name.endswith(".lora_A.weight")
        }
        missing = sorted(name for name in self._modules if f"{name}.weight" not in files)
        if missing:
            raise ExportError(
                f"The base model stores no weights of its own for {missing[0]}, so the adapter "
                "cannot be merged into them. Load it beside the base model with peft."
            )

    @property
    def names(self) -> list[str]:
        return sorted(self._files)

    def get_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._files[name].get_slice(name).get_shape())

    def count_bytes(self, name: str) -> int:
        """Bytes of a tensor as it is stored, without reading it."""
        part = self._files[name].get_slice(name)
        stored_bytes = _TYPE_BYTES[part.get_dtype()]
        return math.prod(part.get_shape()) * max(stored_bytes, self._dtype.itemsize)

    def read(self, name: str) -> torch.Tensor:
        """A tensor in the base's own type, merged in float32 where the adapter changes it."""
        weights = self._files[name].get_tensor(name)
        dtype = torch.promote_types(weights.dtype, self._dtype)
        module = name.removesuffix(".weight")
        return (self._merge(module, weights) if module in self._modules else weights).to(dtype)

    def _merge(self, module: str, weights: torch.Tensor) -> torch.Tensor:
        a, b = (self._tensors[f"{_PREFIX}{module}.lora_{part}.weight"].float() for part in "AB")
        change = self._scale * (b @ a)
        if self._config.get("fan_in_fan_out"):
            change = change.T
        if change.shape != weights.shape:
            raise ExportError(f"The adapter's {module} has another shape than the base model's.")
        merged = weights.float() + change
        magnitude = self._tensors.get(f"{_PREFIX}{module}.lora_magnitude_vector")
        if magnitude is not None:
            dimension = 0 if self._config.get("fan_in_fan_out") else 1
            lengths = merged.norm(dim=dimension, keepdim=True)
            merged *= magnitude.float().view_as(lengths) / lengths
        return merged


@contextmanager
def open_merged(*, base: Path, adapter: Path) -> Iterator[MergedWeights]:
    """The merged weights of a base model's directory and an adapter's.

    Raises
    ------
    ExportError
        The adapter is no LoRA of weights that the base has.
    """
    config = json.loads((adapter / "adapter_config.json").read_text())
    if config.get("peft_type") != "LORA" or config.get("modules_to_save"):
        raise ExportError(
            "Only a LoRA of a model that writes text can be merged. Take the adapter as it is."
        )
    of_base = json.loads((base / "config.json").read_text())
    if "quantization_config" in of_base:
        raise ExportError(
            "The base model's weights are quantised, and merging would round them once more. Take "
            "the adapter as it is."
        )
    tensors = load_file(adapter / "adapter_model.safetensors")
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        for path in list_weight_files(base):
            file = stack.enter_context(safe_open(path, framework="pt"))
            files |= dict.fromkeys(file.keys(), file)
        yield MergedWeights(files, config, tensors, dtype=_find_dtype(of_base))


def _find_dtype(config: Mapping[str, Any]) -> torch.dtype:
    name = config.get("dtype") or config.get("torch_dtype") or "float16"
    return getattr(torch, str(name))


def list_weight_files(base: Path) -> list[Path]:
    """The safetensors files of a model's directory."""
    index = base / _INDEX
    if index.is_file():
        names = json.loads(index.read_text())["weight_map"].values()
        return [base / name for name in sorted(set(names))]
    single = base / "model.safetensors"
    if not single.is_file():
        raise ExportError("The base model has no safetensors files to merge into.")
    return [single]
