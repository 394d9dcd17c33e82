"""Which library multiplies with the frozen weights, measured when a base is loaded."""

from __future__ import annotations

import logging
import time

import torch

from workers.training.architectures import is_projection
from workers.training.four_bit import FourBitLinear
from workers.training.frozen_product import BLAS, ONEDNN, FrozenProducts
from workers.training.frozen_weights import get_dense_weight
from workers.training.packed_model import PackedModel

log = logging.getLogger(__name__)

#: The other library must take at most this share of the time to be used.
_WORTH = 0.95
_TOKENS = 128
_ROUNDS = 5
#: Largest relative difference from BLAS in float32; a wrong kernel is off by far more.
_TOLERANCE = 1e-5


def use_fastest_products(model: PackedModel, *, other: FrozenProducts = ONEDNN) -> FrozenProducts:
    """Measure and keep the faster; float32 on CPUs only, the rest has one way.

    Returns
    -------
    FrozenProducts
        What is in use now.
    """
    model.stream.products = BLAS
    weights = _weights(model)
    if model.device.type != "cpu" or model.dtype != torch.float32 or not weights:
        return BLAS
    try:
        _check(other)
        plain_s, other_s = _seconds(weights, BLAS, other)
    # not every build of PyTorch has it, and training must go on without
    except Exception as error:
        log.warning("%s is not used here: %s", other.name, error)
        return BLAS
    if other_s <= _WORTH * plain_s:
        model.stream.products = other
    log.info(
        "products with frozen weights take %.5f s by %s and %.5f s by %s",
        plain_s,
        BLAS.name,
        other_s,
        other.name,
    )
    return model.stream.products


def _weights(model: PackedModel) -> list[torch.Tensor]:
    """One weight ``[O, D]`` of each shape a block has; those in 4 bits have one way."""
    layers = [
        m for m in model.backbone.modules() if is_projection(m) and not isinstance(m, FourBitLinear)
    ]
    return list(
        {weight.shape: weight for weight in (get_dense_weight(m)[0] for m in layers)}.values()
    )


def _seconds(weights: list[torch.Tensor], *libraries: FrozenProducts) -> tuple[float, ...]:
    """Per library, the best time of each product there and back, taken in turns.

    The best of several, as what else the machine does only ever adds time.
    """
    totals = [0.0] * len(libraries)
    for weight in weights:
        rows = torch.ones(_TOKENS, weight.shape[1])
        best = [float("inf")] * len(libraries)
        for _ in range(_ROUNDS):
            for index, products in enumerate(libraries):
                began = time.perf_counter()
                products.apply(products.apply(rows, weight, None), weight.T, None)
                best[index] = min(best[index], time.perf_counter() - began)
        totals = [total + seconds for total, seconds in zip(totals, best, strict=True)]
    return tuple(totals)


def _check(other: FrozenProducts) -> None:
    """Refuse a library that computes something else, or less precisely.

    Raises
    ------
    ArithmeticError
        When a product differs from BLAS by more than float32 rounding.
    """
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(33, 70, generator=generator)
    weight = torch.randn(50, 70, generator=generator)
    bias = torch.randn(50, generator=generator)
    for x, w, b in ((rows, weight, bias), (rows @ weight.T, weight.T, None)):
        expected = BLAS.apply(x, w, b)
        error = (other.apply(x, w, b) - expected).abs().max() / expected.abs().max()
        if not error <= _TOLERANCE:
            raise ArithmeticError(f"its products are off by {float(error):.1e}")
