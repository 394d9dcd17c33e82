"""Exports as a node delivers them: the tensors of a shape, and files beside them."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Mapping
from dataclasses import asdict

import numpy as np
from safetensors.numpy import save

from workers.protocol.model_shape import ModelShape

_NAMES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def build_config(shape: ModelShape) -> dict[str, object]:
    sizes = asdict(shape)
    return {
        "model_type": shape.model_type,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
    } | {name: sizes[name] for name in ("hidden_size", "intermediate_size", "vocab_size")}


def build_weights(shape: ModelShape, **changed: np.ndarray) -> bytes:
    """A safetensors file with the projections, and a table of tokens."""
    tensors = {
        f"{part.name}.weight": np.full((part.outputs, part.inputs), 0.5, "f2")
        for part in shape.list_projections()
    }
    tensors["model.embed_tokens.weight"] = np.zeros((shape.vocab_size, shape.hidden_size), "f2")
    return save(tensors | changed)


def build_merged(shape: ModelShape, **files: bytes) -> bytes:
    """A tar of merged weights; ``files`` are more of them, or others of the same name."""
    parts = {
        "config.json": json.dumps(build_config(shape)).encode(),
        "model.safetensors": build_weights(shape),
    } | files
    return build_tar(parts)


def build_tar(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def list_gguf_tensors(shape: ModelShape) -> dict[str, np.ndarray]:
    """The tensors of an F16 file by GGUF's names, as numpy orders their sizes."""
    hidden = np.ones(shape.hidden_size, "f4")
    tensors = {
        "token_embd.weight": np.zeros((shape.vocab_size, shape.hidden_size), "f2"),
        "output_norm.weight": hidden,
    }
    for layer in range(shape.layers):
        tensors |= {f"blk.{layer}.{name}_norm.weight": hidden for name in ("attn", "ffn")}
        for name, part in zip(_NAMES, shape.parts, strict=True):
            values = np.full((part.outputs, part.inputs), 0.5, "f2")
            tensors[f"blk.{layer}.{name}.weight"] = values
    return tensors


def build_gguf(
    shape: ModelShape, *, key: str = "general.name", **changed: np.ndarray | None
) -> bytes:
    """A GGUF file in F16; a tensor that is changed to ``None`` is left out."""
    found = list_gguf_tensors(shape) | changed
    tensors = {name: values for name, values in found.items() if values is not None}
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), 1)
    head += _text(key) + struct.pack("<I", 8) + _text("a model")
    data = b""
    for name, values in tensors.items():
        sizes = values.shape[::-1]
        head += _text(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        head += struct.pack("<IQ", 0 if values.dtype == np.float32 else 1, len(data))
        data += _pad(values.tobytes())
    return _pad(head) + data


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def _pad(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % 32)
