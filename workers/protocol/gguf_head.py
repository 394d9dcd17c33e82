"""What stands before the tensors of a GGUF file: its metadata, and the tensors' names and types.

Names, metadata and the order of rows of Llama's queries and keys are those of llama.cpp's own
``convert_hf_to_gguf.py``; K-quants need llama.cpp's ``llama-quantize``. Nodes and the market write
the same bytes of the same base model.
"""

# pyright: basic
# Other programs' JSON and a library without types.

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from workers.protocol.exports import Q8_0, ExportError
from workers.protocol.gguf_tokenizer import add_tokenizer

_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}
#: Weights of one block of Q8_0.
_BLOCK = 32
#: By what Llama 3.1 divides each frequency.
ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of a GGUF file, in the order of the file."""

    name: str
    #: Its name in the base model; of ``ROPE_FACTORS`` empty.
    source: str
    #: As numpy orders sizes.
    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType


def begin_gguf(
    out: Path,
    *,
    config: Mapping[str, Any],
    tokenizer: Mapping[str, Any],
    chat_template: str,
    shapes: Mapping[str, tuple[int, ...]],
    form: str,
) -> tuple[gguf.GGUFWriter, list[GgufTensor]]:
    """Write the head of a file; gives who writes the tensors' values after it, and which.

    Parameters
    ----------
    config, tokenizer
        ``config.json`` and ``tokenizer.json`` of the base model.
    shapes
        Of the base model's tensors by name, in the order of their names.
    form
        ``F16`` or ``Q8_0``. Rows that no block of Q8_0 divides stay F16, vectors F32.

    Raises
    ------
    ExportError
        The base is of another family, or its tokenizer is none that GGUF has a name for.
    OSError
        Such as a full disk.
    """
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
        add_tokenizer(writer, config=config, tokenizer=tokenizer, chat_template=chat_template)
        names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
        tensors = [
            GgufTensor(_name(names, source), source, shape, _choose_type(shape, form))
            for source, shape in shapes.items()
        ]
        factors = find_rope_factors(config)
        if factors is not None:
            kind = gguf.GGMLQuantizationType.F32
            tensors.insert(0, GgufTensor(ROPE_FACTORS, "", factors.shape, kind))
        for one in tensors:
            # The type of the values before they are stored as ``kind``: the shape is theirs.
            dtype, size = np.dtype(np.float32), count_tensor_bytes(one)
            writer.add_tensor_info(one.name, one.shape, dtype, size, raw_dtype=one.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
    except BaseException:
        writer.close()
        raise
    return writer, tensors


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


def find_rope_factors(config: Mapping[str, Any]) -> np.ndarray | None:
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


def count_tensor_bytes(tensor: GgufTensor) -> int:
    """Bytes of a tensor's values in the file."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[tensor.kind]
    return math.prod(tensor.shape) // block * block_bytes


def order_rows(values: Any, name: str, config: Mapping[str, Any]) -> Any:
    """Order the rows of a base model's tensor as GGUF has them.

    Llama's queries and keys have the two halves of each head interleaved.
    """
    if config.get("model_type") != "llama":
        return values
    if ".q_proj." in name:
        heads = config["num_attention_heads"]
    elif ".k_proj." in name:
        heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    else:
        return values
    rows = values.shape[0]
    halves = values.reshape(heads, 2, rows // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
