"""Transformer blocks that run on their own devices, and again in the backward pass where wanted.

For rows that fit in no other way a pass spills: what goes into each block waits in the host's
memory, and the MLP within sees its tokens in tiles, each recomputed by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from workers.protocol.model_shape import ModelShape
from workers.protocol.pass_bytes import TILE_TOKENS
from workers.training.architectures import find_blocks
from workers.training.multi_lora import Stream
from workers.training.packing import cut_pack, move


class BlocksNoted(Exception):
    """It is known what each block is called with, and the rest of the pass is of no use."""


class BlockCalls:
    """Stands in the place of a model's blocks while its own code runs what is around them.

    Parameters
    ----------
    blocks : int
        How many there are.
    given : torch.Tensor, optional
        What the last block gives; without it, what each block is called with is noted.
    """

    def __init__(self, blocks: int, given: torch.Tensor | None = None) -> None:
        self._blocks = blocks
        self._given = given
        #: Hidden states that go into the first block.
        self.first: torch.Tensor | None = None
        #: What each block is called with beside them.
        self.rest: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def take(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """In the place of a block's forward pass.

        Raises
        ------
        BlocksNoted
            It was the last one.
        ValueError
            The model does something between its blocks.
        """
        if self._given is not None:
            return self._given
        hidden, *rest = args or (None,)
        if self.first is None:
            self.first = hidden
        if hidden is None or hidden is not self.first:
            raise ValueError("blocks do not follow each other")
        self.rest.append((tuple(rest), kwargs))
        if len(self.rest) == self._blocks:
            raise BlocksNoted
        return hidden


class Recomputed(Protocol):
    """What is asked of a model at each call; see ``PackedModel``."""

    shape: ModelShape
    backbone: nn.Module
    stream: Stream
    checkpoint_layers: bool
    spills: bool
    calls: BlockCalls | None
    parts: tuple[range, ...]

    @property
    def device(self) -> torch.device: ...


@dataclass(frozen=True, slots=True)
class PlacedBlock:
    """A block on its device."""

    device: torch.device
    #: Runs it there, and leaves there what comes out.
    run: Callable[..., Any]


def wrap_blocks(model: Recomputed) -> list[PlacedBlock]:
    """Make each block recomputable; whether it is wanted is asked at each call."""
    blocks = list(find_blocks(model.backbone)[1])
    for block in blocks:
        if model.shape.mlp:
            _wrap_mlp(block.get_submodule(model.shape.mlp), model)
    return [_wrap_block(block, model) for block in blocks]


def _wrap_block(block: nn.Module, model: Recomputed) -> PlacedBlock:
    stream, plain = model.stream, block.forward
    device, first = next(block.parameters()).device, model.device

    def run(*args: Any, **kwargs: Any) -> Any:
        pack = stream.pack
        if device != first:
            pack = stream.move(pack, device)
            # hidden states are of this block alone, all else of the pass
            rest = (stream.move(value, device) for value in args[1:])
            args = *(move(value, device) for value in args[:1]), *rest
            kwargs = {name: stream.move(value, device) for name, value in kwargs.items()}

        def again(*args: Any, **kwargs: Any) -> Any:
            # a pass of several parts has gone on to another by then
            with stream.reading(pack), use_device(device):
                return plain(*args, **kwargs)

        if not model.checkpoint_layers or not torch.is_grad_enabled():
            return again(*args, **kwargs)
        with save_on_cpu() if model.spills else nullcontext():
            return checkpoint(again, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    def forward(*args: Any, **kwargs: Any) -> Any:
        if model.calls is not None:
            return model.calls.take(*args, **kwargs)
        out = run(*args, **kwargs)
        # what may be between them, where passes cannot be cut, is on the first device
        return out if device == first or len(model.parts) > 1 else move(out, first)

    block.forward = forward
    return PlacedBlock(device, run)


def use_device(device: torch.device) -> AbstractContextManager[Any]:
    """Launch kernels there that ask for the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


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
