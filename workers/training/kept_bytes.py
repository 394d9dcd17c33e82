"""What a token of a model keeps for its backward pass, counted on ``meta``: no memory is taken.

The sum of ``pass_bytes`` is Llama's. Experts, state spaces and further streams keep more.
"""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel

from workers.protocol.model_shape import ModelShape
from workers.protocol.pass_bytes import DeviceProfile, count_kept_bytes
from workers.training.architectures import build_on_meta, find_backbone, read_shape
from workers.training.saved_bytes import SavedBytes

_COUNTED = "finetender_counted"
#: A whole chunk of every kind of state space.
_TOKENS = 256
#: Where nothing can be counted: nearly the most that any type was found to keep.
_UNKNOWN = 10.0
#: Differences that are those of norms and rotary angles.
_ALIKE = 1.1
log = logging.getLogger(__name__)


def describe_model(config: PretrainedConfig) -> ModelShape:
    """The shape of a model that is not loaded, with what its tokens keep.

    Raises
    ------
    UserFault
        As ``build_on_meta`` and ``read_shape``.
    """
    # the way of attention is written into it
    model = build_on_meta(deepcopy(config))
    shape = read_shape(model)
    return replace(shape, kept_share=measure_kept_share(model, shape))


def measure_kept_share(model: PreTrainedModel, shape: ModelShape) -> float:
    """How many times what the sum says a token really keeps, and 1 where it is less.

    Parameters
    ----------
    model
        On ``meta`` (``build_on_meta``); it is of no other use afterwards.
    """
    if shape.encoder:
        return 1.0
    model.eval().requires_grad_(False)
    nn.Module.to(model, torch.bfloat16)
    for part in shape.list_projections():
        # adapters keep the inputs of what they sit beside
        model.get_submodule(part.name).requires_grad_(True)
    tokens = torch.zeros(1, _TOKENS, dtype=torch.int64, device=model.device)
    backbone: Any = find_backbone(model)
    try:
        model.set_attn_implementation(_COUNTED)
        with SavedBytes(model) as saved:
            backbone(input_ids=tokens, use_cache=False)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        log.warning("what a token of this model keeps cannot be counted: %s", error)
        return _UNKNOWN
    predicted = count_kept_bytes(shape, DeviceProfile("cuda", 2), recompute=False)
    share = saved.total / _TOKENS / predicted * shape.kept_share
    return round(share, 2) if share > _ALIKE else 1.0


class _Kept(torch.autograd.Function):
    """What a fused kernel of attention keeps: what goes in, what comes out, a sum for each row."""

    @staticmethod
    def forward(ctx: Any, query, key, value):
        out = value.new_empty(*query.shape[:3], value.shape[3])
        ctx.save_for_backward(query, key, value, out, out.new_empty(out.shape[:3]).float())
        return out


def _attend(module: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> tuple[Any, None]:
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    return _Kept.apply(query, key, value).transpose(1, 2), None  # type: ignore[union-attr]


AttentionInterface.register(_COUNTED, _attend)
