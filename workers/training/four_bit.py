"""Frozen projections in four bits (QLoRA), in plain PyTorch: the same on every device.

Values are NormalFloat codes of blocks of 64, each with its largest magnitude in 32 bits. A product
makes the matrix it needs and drops it; the backward pass makes it once more. Published kernels
read the codes themselves, which saves time for a few tokens; a pack has thousands.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

#: NormalFloat's values (Dettmers et al. 2023, appendix E).
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
BLOCK = 64


class FourBitLinear(nn.Module):
    """A projection whose weights are kept in four bits.

    Parameters
    ----------
    base : torch.nn.Module
        ``Linear`` or GPT-2's ``Conv1D``; it is not changed.
    device : torch.device
        Where the codes go.
    """

    def __init__(self, base: nn.Linear | Conv1D, *, device: torch.device) -> None:
        super().__init__()
        weight_OD = base.weight.detach().to(device)
        #: Whether the base's files have it transposed.
        self.transposed = isinstance(base, Conv1D)
        if self.transposed:
            weight_OD = weight_OD.T
        self.out_features, self.in_features = weight_OD.shape
        codes, largest = quantize(weight_OD)
        self.codes = nn.Parameter(codes, requires_grad=False)
        self.largest = nn.Parameter(largest, requires_grad=False)
        bias = None if base.bias is None else base.bias.detach().to(device)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _FourBitProduct.apply(x, self)  # type: ignore[assignment]
        return out if self.bias is None else out + self.bias

    def build_weight(self, dtype: torch.dtype) -> torch.Tensor:
        """``[O, D]``."""
        count = self.in_features * self.out_features
        values = dequantize(self.codes, self.largest, dtype)[:count]
        return values.view(self.out_features, self.in_features)


class _FourBitProduct(torch.autograd.Function):
    """``x @ W.T``, whose backward pass keeps nothing but the layer."""

    @staticmethod
    def forward(ctx: Any, x, layer):
        ctx.layer = layer
        return x @ layer.build_weight(x.dtype).T

    @staticmethod
    def backward(ctx: Any, *grads):
        return grads[0] @ ctx.layer.build_weight(grads[0].dtype), None


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, two to a byte, and the largest magnitude of each block.

    Returns
    -------
    uint8[B, 32], float32[B]
        For ``B`` blocks of 64 values; the last is filled up with zeros.
    """
    flat = weight.reshape(-1).float()
    flat = nn.functional.pad(flat, (0, -len(flat) % BLOCK)).view(-1, BLOCK)
    largest_B = flat.abs().amax(1)
    levels = torch.tensor(NF4, device=weight.device)
    between = (levels[1:] + levels[:-1]) / 2
    scaled = flat / largest_B.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
    codes = torch.bucketize(scaled, between, out_int32=True).to(torch.uint8)
    return (codes[:, 0::2] << 4) | codes[:, 1::2], largest_B


def dequantize(codes: torch.Tensor, largest_B: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """All values of the blocks in a row."""
    levels = torch.tensor(NF4, device=codes.device, dtype=dtype)
    # both values of each byte there is
    pairs = torch.stack([levels.repeat_interleave(16), levels.repeat(16)], dim=1)
    values = pairs.index_select(0, codes.reshape(-1).int()).view(len(codes), BLOCK)
    return (values * largest_B.to(dtype)[:, None]).view(-1)
