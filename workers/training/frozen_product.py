"""Products with frozen weights, by the library that is fastest on this machine.

Nearly all arithmetic of a step is rows times a frozen matrix, or times its transpose on
the way back. On CPUs two libraries that come with PyTorch can do it in float32: the BLAS
behind ``torch.mm`` (MKL, which on processors of other makers leaves AVX-512 unused) and
oneDNN, which PyTorch itself takes for lower precision only. Which is faster is a matter
of the processor and is measured, see ``workers.training.product_choice``.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F


class FrozenProducts(Protocol):
    """``x W^T + b`` and ``x W`` for weights that never change."""

    name: str

    def apply(
        self, x_TD: torch.Tensor, weight_OD: torch.Tensor, bias_O: torch.Tensor | None
    ) -> torch.Tensor:
        """``[T, O]``."""
        ...


class BlasProducts:
    """``torch``'s own choice; works everywhere."""

    name = "blas"

    def apply(
        self, x_TD: torch.Tensor, weight_OD: torch.Tensor, bias_O: torch.Tensor | None
    ) -> torch.Tensor:
        return F.linear(x_TD, weight_OD, bias_O)


class OneDnnProducts:
    """oneDNN's matrix product on plain, unpacked float32 weights: no memory is spent on it."""

    name = "onednn"

    def apply(
        self, x_TD: torch.Tensor, weight_OD: torch.Tensor, bias_O: torch.Tensor | None
    ) -> torch.Tensor:
        if x_TD.dtype != torch.float32 or x_TD.device.type != "cpu" or not len(x_TD):
            return F.linear(x_TD, weight_OD, bias_O)
        # the only door PyTorch has to it for float32
        return torch.ops.mkldnn._linear_pointwise(
            x_TD.contiguous(), weight_OD, bias_O, "none", [], ""
        )


BLAS = BlasProducts()
ONEDNN = OneDnnProducts()
