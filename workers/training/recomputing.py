"""Transformer blocks that are recomputed in the backward pass, where that is wanted.

For rows that fit in no other way a pass spills: what goes into each block waits in the host's
memory, and the MLP within sees its tokens in tiles, each recomputed by itself.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from workers.protocol.model_shape import ModelShape
from workers.protocol.pass_bytes import TILE_TOKENS
from workers.training.architectures import find_blocks
from workers.training.multi_lora import Stream
from workers.training.packing import cut_pack


class Recomputed(Protocol):
    """What is asked of a model at each call; see ``PackedModel``."""

    shape: ModelShape
    backbone: nn.Module
    stream: Stream
    checkpoint_layers: bool
    spills: bool


def wrap_blocks(model: Recomputed) -> None:
    """Make each block recomputable; whether it is wanted is asked at each call."""
    for block in find_blocks(model.backbone)[1]:
        _wrap_block(block, model)
        if model.shape.mlp:
            _wrap_mlp(block.get_submodule(model.shape.mlp), model)


def _wrap_block(block: nn.Module, model: Recomputed) -> None:
    stream = model.stream
    plain = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not model.checkpoint_layers or not torch.is_grad_enabled():
            return plain(*args, **kwargs)
        pack = stream.pack

        def again(*args: Any, **kwargs: Any) -> Any:
            # a pass of several parts has gone on to another by then
            with stream.reading(pack):
                return plain(*args, **kwargs)

        with save_on_cpu() if model.spills else nullcontext():
            return checkpoint(again, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    block.forward = forward


def _wrap_mlp(mlp: nn.Module, model: Recomputed) -> None:
    stream, plain = model.stream, mlp.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        tile = TILE_TOKENS[x.device.type]
        if not model.spills or not torch.is_grad_enabled() or x.shape[1] <= tile:
            return plain(x)
        found, start = [], 0
        for part in x.split(tile, dim=1):
            end = start + part.shape[1]
            pack = None if stream.pack is None else cut_pack(stream.pack, start, end)
            start = end

            def again(part: torch.Tensor, _pack: Any = pack) -> torch.Tensor:
                with stream.reading(_pack):
                    return plain(part)

            found.append(checkpoint(again, part, use_reentrant=False, preserve_rng_state=False))
        return torch.cat(found, dim=1)

    mlp.forward = forward
