"""What is read off a frozen layer: the lengths of its weights, and the matrix of a plain one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from workers.training.architectures import get_features

#: Rows of the identity that weights are read by at once.
_UNIT_ROWS = 256


def measure_lengths(base: nn.Module) -> torch.Tensor:
    """``float32[O]``: the length of each output's frozen weights, of any kind of layer."""
    inputs, outputs = get_features(base)
    first = next(base.parameters())
    squares_O = torch.zeros(outputs, device=first.device)
    for start in range(0, inputs, _UNIT_ROWS):
        units = torch.zeros(min(_UNIT_ROWS, inputs - start), inputs, device=first.device)
        units[:, start:].fill_diagonal_(1.0)
        squares_O += multiply_frozen(base, units).square().sum(0)
    return squares_O.sqrt()


@torch.no_grad()
def multiply_frozen(base: nn.Module, x_TD: torch.Tensor) -> torch.Tensor:
    """``float32[T, O]``: the product with the frozen weights, without the bias."""
    weight: Any = getattr(base, "weight", None)
    out_TO = base(x_TD if weight is None else x_TD.to(weight.dtype)).float()
    bias: Any = base.bias
    return out_TO if bias is None else out_TO - bias.float()


def get_dense_weight(base: nn.Module) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``[O, D]`` (a view, where the layer keeps the transpose) and the bias."""
    weight = base.weight.T if isinstance(base, Conv1D) else base.weight
    return weight, base.bias  # type: ignore[return-value]
