"""Reads a base in four bits tensor by tensor, so that its weights are never whole together.

``transformers`` hands each tensor over on the device where it is wanted. Checkpoints that
bitsandbytes has written in NF4 are read as well: their codes are those of ``four_bit``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig
from transformers.core_model_loading import ConversionOps, WeightConverter
from transformers.quantizers.auto import register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from workers.training.architectures import is_ready, read_shape
from workers.training.four_bit import BLOCK, FourBitLinear, dequantize

_METHOD = "finetender_nf4"
_STATE = "weight.quant_state.bitsandbytes__nf4"
#: Of bitsandbytes, beside a projection's codes.
_STATISTICS = (
    *("weight.nested_absmax", "weight.nested_quant_map", "weight.quant_map", "weight.absmax"),
    _STATE,
)


class FourBitConfig(QuantizationConfigMixin):
    """Asks ``from_pretrained`` for projections in four bits; the configuration forgets its own.

    Parameters
    ----------
    config
        Of a checkpoint that is whole, or one for which ``is_ready``.
    """

    def __init__(self, config: PretrainedConfig) -> None:
        self.quant_method: Any = _METHOD
        self.ready = is_ready(config)
        if self.ready:
            delattr(config, "quantization_config")


@register_quantizer(_METHOD)
class FourBitQuantizer(HfQuantizer):
    quantization_config: FourBitConfig

    def __init__(self, quantization_config: FourBitConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self._names: set[str] = set()
        #: By their names, until they take the places of what the model was built with.
        self.layers: dict[str, FourBitLinear] = {}

    @property
    def quantized_element_size(self) -> float:
        return 0.5 + 4 / BLOCK

    @property
    def is_trainable(self) -> bool:
        return True

    def is_serializable(self) -> bool:
        return False

    def param_needs_quantization(self, model: Any, param_name: str, **_: Any) -> bool:
        return param_name in self._names

    def get_quantize_ops(self) -> ConversionOps:
        return _Quantize(self.layers)

    def get_weight_conversions(self) -> list[WeightConverter]:
        if not self.quantization_config.ready:
            return []
        names: Any = ["weight", *_STATISTICS]
        into: Any = "weight"
        return [WeightConverter(names, into, [_Unpack()])]

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> None:
        self._names = {f"{part.name}.weight" for part in read_shape(model).list_projections()}
        if self.quantization_config.ready:
            # scales would be rounded to the type of the other weights
            kept = model._keep_in_fp32_modules_strict or ()
            model._keep_in_fp32_modules_strict = {*kept, *self._names}

    def _process_model_after_weight_loading(self, model: Any, **options: Any) -> None:
        for path, layer in self.layers.items():
            parent, _, child = path.rpartition(".")
            setattr(model.get_submodule(parent), child, layer)
        self.layers.clear()
        self.remove_quantization_config(model)


class _Quantize(ConversionOps):
    """Makes layers in four bits; of the model's own, nothing but an empty tensor is left."""

    def __init__(self, layers: dict[str, FourBitLinear]) -> None:
        self._layers = layers

    def convert(
        self, input_dict: dict[str, Any], *, model: Any, missing_keys: Any, **_: Any
    ) -> dict[str, torch.Tensor]:
        [(name, found)] = input_dict.items()
        weight = found[0] if isinstance(found, list) else found
        path = name.removesuffix(".weight")
        base = model.get_submodule(path)
        if base.weight.shape != weight.shape:
            raise ValueError(f"{name} has the shape {tuple(weight.shape)}")
        base.weight = nn.Parameter(weight, requires_grad=False)
        self._layers[path] = FourBitLinear(base, device=weight.device)
        empty: Any = nn.Parameter(weight.new_empty(0), requires_grad=False)
        # nothing is drawn at random for it
        empty._is_hf_initialized = True
        base.weight = empty
        missing_keys.discard(name)
        return {}


class _Unpack(ConversionOps):
    """Makes the matrix of bitsandbytes' codes; quantised again, it has the same codes."""

    def convert(self, input_dict: dict[str, Any], **_: Any) -> dict[str, Any]:
        if len(input_dict) == 1:
            return input_dict
        parts = {
            name: found[0] if isinstance(found, list) else found
            for name, found in input_dict.items()
        }
        return {"weight": unpack(parts)}


def unpack(parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """``float32[O, D]``: one projection of bitsandbytes.

    Scales of blocks may be in eight bits (Dettmers et al. 2023, section 3, double quantisation).

    Raises
    ------
    ValueError
        The codes are not in blocks of 64.
    """
    state = json.loads(bytes(parts[_STATE].to("cpu", torch.uint8).tolist()))
    if state["blocksize"] != BLOCK:
        raise ValueError(f"blocks of {state['blocksize']} values, where {BLOCK} are read")
    largest_B = parts["weight.absmax"].float()
    if "nested_blocksize" in state:
        scales = parts["weight.nested_absmax"].repeat_interleave(state["nested_blocksize"])
        levels = parts["weight.nested_quant_map"][largest_B.long()]
        largest_B = levels * scales[: len(levels)] + state["nested_offset"]
    codes = parts["weight"].reshape(-1).to(torch.uint8)
    codes = nn.functional.pad(codes, (0, -len(codes) % (BLOCK // 2))).view(-1, BLOCK // 2)
    outputs, inputs = state["shape"]
    return dequantize(codes, largest_B, torch.float32)[: outputs * inputs].view(outputs, inputs)
