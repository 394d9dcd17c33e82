"""Merged weights as GGUF, for llama.cpp and what is built on it: F16 or Q8_0, Llama and Qwen."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import torch

from workers.exporting.merging import MergedWeights
from workers.protocol.gguf_head import begin_gguf, find_rope_factors, order_rows


def write_gguf(weights: MergedWeights, *, base: Path, adapter: Path, out: Path, form: str) -> None:
    """Write a model as one GGUF file, with the chat template of the adapter's copy.

    Raises
    ------
    ExportError
        The base is of another family, or GGUF has no name for its tokenizer.
    OSError
        Such as a full disk.
    """
    config = json.loads((base / "config.json").read_text())
    tokenizer = base / "tokenizer.json"
    writer, tensors = begin_gguf(
        out,
        config=config,
        tokenizer=json.loads(tokenizer.read_text()) if tokenizer.is_file() else {},
        chat_template=_find_chat_template(adapter) or _find_chat_template(base),
        shapes={name: weights.get_shape(name) for name in weights.names},
        form=form,
    )
    factors = find_rope_factors(config)
    try:
        if factors is not None:
            writer.write_tensor_data(factors)
        for tensor in tensors[factors is not None :]:
            values = weights.read(tensor.source).to(torch.float32).numpy()
            values = order_rows(values, tensor.source, config)
            writer.write_tensor_data(gguf.quants.quantize(values, tensor.kind))
    finally:
        writer.close()


def _find_chat_template(folder: Path) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text()
    path = folder / "tokenizer_config.json"
    found = json.loads(path.read_text()).get("chat_template") if path.is_file() else None
    if isinstance(found, list):
        found = {one["name"]: one["template"] for one in found}.get("default")
    return found or ""
