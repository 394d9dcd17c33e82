"""Merged weights as GGUF, for llama.cpp and what is built on it: F16 or Q8_0, Llama and Qwen.

Names, metadata and the order of rows of Llama's queries and keys are those of llama.cpp's own
``convert_hf_to_gguf.py``; K-quants need llama.cpp's ``llama-quantize``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from workers.exporting.gguf_tokenizer import add_tokenizer
from workers.exporting.merging import ExportError, MergedWeights
from workers.protocol.exports import Q8_0

_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}
#: Weights of one block of Q8_0.
_BLOCK = 32


def write_gguf(weights: MergedWeights, *, base: Path, adapter: Path, out: Path, form: str) -> None:
    """Write a model as one GGUF file.

    Parameters
    ----------
    form
        ``F16`` or ``Q8_0``. Rows that no block of Q8_0 divides stay F16, vectors F32.

    Raises
    ------
    ExportError
        The base is of another family, or its tokenizer is none that GGUF has a name for.
    OSError
        Such as a full disk.
    """
    config = json.loads((base / "config.json").read_text())
    family = config.get("model_type")
    if family not in _ARCHITECTURES:
        raise ExportError(
            f"GGUF files are made of Llama, Qwen2 and Qwen3 models, and this is {family}. Take the "
            "merged weights: llama.cpp's convert_hf_to_gguf.py may know it."
        )
    arch = _ARCHITECTURES[family]
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[arch])
    try:
        _add_shape(writer, config, form)
        add_tokenizer(writer, config=config, base=base, adapter=adapter)
        names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
        tensors = [(_name(names, name), name) for name in weights.names]
        factors = _find_rope_factors(config)
        if factors is not None:
            writer.add_tensor("rope_freqs.weight", factors)
        for name, source in tensors:
            shape = weights.get_shape(source)
            kind = _choose_type(shape, form)
            # The type of the values before they are stored as ``kind``: the shape is theirs.
            dtype = np.dtype(np.float32)
            writer.add_tensor_info(name, shape, dtype, _count_bytes(shape, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        if factors is not None:
            writer.write_tensor_data(factors)
        for _, source in tensors:
            values = weights.read(source).to(torch.float32).numpy()
            if family == "llama":
                values = _permute(values, source, config)
            writer.write_tensor_data(gguf.quants.quantize(values, _choose_type(values.shape, form)))
    finally:
        writer.close()


def _name(names: gguf.TensorNameMap, name: str) -> str:
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if found is None:
        raise ExportError(f"GGUF has no name for the base model's {name}.")
    return found


def _add_shape(writer: gguf.GGUFWriter, config: Mapping[str, Any], form: str) -> None:
    heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_file_type(
        gguf.LlamaFileType.MOSTLY_Q8_0 if form == Q8_0 else gguf.LlamaFileType.MOSTLY_F16
    )
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    rope = _get_rope(config)
    writer.add_rope_freq_base(rope.get("rope_theta", 10_000.0))
    kind = rope.get("rope_type", "default")
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif kind not in ("default", "llama3"):
        raise ExportError(
            f"GGUF files are not made of models whose positions are scaled by {kind}."
        )


def _get_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of positions, as newer and older configurations have them."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = dict(found)
    rope.setdefault("rope_theta", config.get("rope_theta", 10_000.0))
    rope["rope_type"] = rope.get("rope_type") or rope.get("type") or "default"
    return rope


def _find_rope_factors(config: Mapping[str, Any]) -> np.ndarray | None:
    """By what Llama 3.1 divides each frequency; ``None`` for models that do not.

    As ``_compute_llama3_parameters`` of ``transformers.modeling_rope_utils``.
    """
    rope = _get_rope(config)
    if rope["rope_type"] != "llama3":
        return None
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    context = rope["original_max_position_embeddings"]
    factors = []
    for place in range(0, size, 2):
        wave = 2 * math.pi * rope["rope_theta"] ** (place / size)
        if wave < context / high:
            factors.append(1.0)
        elif wave > context / low:
            factors.append(rope["factor"])
        else:
            smooth = (context / wave - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def _choose_type(shape: tuple[int, ...], form: str) -> gguf.GGMLQuantizationType:
    if len(shape) < 2:
        return gguf.GGMLQuantizationType.F32
    if form == Q8_0 and shape[-1] % _BLOCK == 0:
        return gguf.GGMLQuantizationType.Q8_0
    return gguf.GGMLQuantizationType.F16


def _count_bytes(shape: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> int:
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    return math.prod(shape) // block * block_bytes


def _permute(values: np.ndarray, name: str, config: Mapping[str, Any]) -> np.ndarray:
    """Llama's queries and keys with the two halves of each head interleaved."""
    if ".q_proj." in name:
        heads = config["num_attention_heads"]
    elif ".k_proj." in name:
        heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    else:
        return values
    rows = values.shape[0]
    halves = values.reshape(heads, 2, rows // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
