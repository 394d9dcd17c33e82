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

from workers.protocol.model_shape import ModelShape


def draw_initial_head(
    shape: ModelShape, *, labels: int, deviation: float, seed: int
) -> dict[str, torch.Tensor]:
    """Normal weights and zero biases, each from a generator of its own."""
    values = {}
    for name, sizes in shape.list_head_shapes(labels=labels).items():
        generator = torch.Generator().manual_seed((seed << 32) ^ zlib.crc32(name.encode()))
        values[name] = (
            torch.zeros(sizes)
            if name.endswith("bias")
            else torch.empty(sizes).normal_(0.0, deviation, generator=generator)
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
