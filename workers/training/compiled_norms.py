"""Normalisation layers compiled into one kernel each, where that is measured to pay.

They are the part of a block that compiles once for every pack: no adapters, no
attention, any number of tokens. On a small base they are a third of all launches.
"""

from __future__ import annotations

import logging

import torch
from torch import nn

from workers.training.packed_model import PackedModel
from workers.training.rehearsal import time_pass

log = logging.getLogger(__name__)

#: Compiled passes must take at most this share of the plain time.
_WORTH = 0.97
_TOKENS = 1024


def compile_norms_if_faster(model: PackedModel, *, backend: str = "inductor") -> bool:
    """Compile, measure, and keep the faster; on CUDA only.

    Returns
    -------
    bool
        Whether the compiled layers are in use.
    """
    if model.device.type != "cuda":
        return False
    plain_s = time_pass(model, tokens=_TOKENS)
    compile_norms(model, backend=backend)
    try:
        compiled_s = time_pass(model, tokens=_TOKENS)
    # without a working compiler on the node, training goes on as it did
    except Exception as error:
        log.warning("compiled layers are not used here: %s", error)
        compiled_s = float("inf")
    log.info("a pass takes %.4f s plain and %.4f s compiled", plain_s, compiled_s)
    if compiled_s <= _WORTH * plain_s:
        return True
    restore_norms(model)
    return False


def compile_norms(model: PackedModel, *, backend: str) -> None:
    """Put compiled forwards in place; any number of tokens shares one compilation."""
    for norm in _norms(model):
        norm.forward = torch.compile(norm.forward, dynamic=True, backend=backend)


def restore_norms(model: PackedModel) -> None:
    """Back to the classes' own forwards."""
    for norm in _norms(model):
        norm.__dict__.pop("forward", None)


def _norms(model: PackedModel) -> list[nn.Module]:
    names = ("RMSNorm", "LayerNorm")
    return [m for m in model.backbone.modules() if type(m).__name__.endswith(names)]
