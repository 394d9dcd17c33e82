"""Which library multiplies with the frozen weights, measured when a base is loaded."""

from __future__ import annotations

import logging

import torch

from workers.training.frozen_product import BLAS, ONEDNN, FrozenProducts
from workers.training.packed_model import PackedModel
from workers.training.rehearsal import pass_seconds

log = logging.getLogger(__name__)

#: The other library must take at most this share of the time to be used.
_WORTH = 0.95
_TOKENS = 256
#: Largest relative difference from BLAS in float32; a wrong kernel is off by far more.
_TOLERANCE = 1e-5


def use_fastest_products(model: PackedModel, *, other: FrozenProducts = ONEDNN) -> FrozenProducts:
    """Measure and keep the faster; float32 on CPUs only, the rest has one way.

    Call while no job is on the model.

    Returns
    -------
    FrozenProducts
        What is in use now.
    """
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return BLAS
    try:
        _check(other)
        seconds = {}
        for products in (BLAS, other):
            model.stream.products = products
            seconds[products.name] = pass_seconds(model, tokens=_TOKENS)
    # not every build of PyTorch has it, and training must go on without
    except Exception as error:
        log.warning("%s is not used here: %s", other.name, error)
        model.stream.products = BLAS
        return BLAS
    chosen = other if seconds[other.name] <= _WORTH * seconds[BLAS.name] else BLAS
    model.stream.products = chosen
    log.info("a pass takes %s s; frozen weights go through %s", seconds, chosen.name)
    return chosen


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
