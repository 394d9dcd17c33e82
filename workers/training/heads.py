"""Classification heads of encoders, as plain functions of named tensors.

A job that classifies trains its own head beside its adapter. Names are those of the
stock ``transformers`` models, so that PEFT's ``modules_to_save`` finds them.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F


def list_head_shapes(model_type: str, *, width: int, labels: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the head's tensors."""
    if model_type == "roberta":
        return {
            "classifier.dense.weight": (width, width),
            "classifier.dense.bias": (width,),
            "classifier.out_proj.weight": (labels, width),
            "classifier.out_proj.bias": (labels,),
        }
    return {"classifier.weight": (labels, width), "classifier.bias": (labels,)}


def draw_initial_head(
    model_type: str, *, width: int, labels: int, deviation: float, seed: int
) -> dict[str, torch.Tensor]:
    """Normal weights and zero biases, each from a generator of its own."""
    values = {}
    for name, shape in list_head_shapes(model_type, width=width, labels=labels).items():
        generator = torch.Generator().manual_seed((seed << 32) ^ zlib.crc32(name.encode()))
        values[name] = (
            torch.zeros(shape)
            if name.endswith("bias")
            else torch.empty(shape).normal_(0.0, deviation, generator=generator)
        )
    return values


def classify(
    model_type: str, backbone: Any, head: Mapping[str, torch.Tensor], first_SD: torch.Tensor
) -> torch.Tensor:
    """Logits ``[S, labels]`` in float32 from each sequence's first hidden state."""
    if model_type == "roberta":
        inner = F.linear(
            first_SD.float(), head["classifier.dense.weight"], head["classifier.dense.bias"]
        )
        return F.linear(
            inner.tanh(), head["classifier.out_proj.weight"], head["classifier.out_proj.bias"]
        )
    pooled = backbone.pooler(first_SD[:, None]).float()
    return F.linear(pooled, head["classifier.weight"], head["classifier.bias"])
