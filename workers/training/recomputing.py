"""Transformer blocks that are recomputed in the backward pass, where that is wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from workers.training.architectures import find_blocks
from workers.training.multi_lora import Stream


def wrap_blocks(backbone: nn.Module, stream: Stream, *, is_wanted: Callable[[], bool]) -> None:
    """Make each block recomputable; whether it is wanted is asked at each call."""
    for block in find_blocks(backbone)[1]:
        plain = block.forward

        def forward(*args: Any, _plain: Any = plain, **kwargs: Any) -> Any:
            if not is_wanted() or not torch.is_grad_enabled():
                return _plain(*args, **kwargs)
            pack = stream.pack

            def again(*args: Any, **kwargs: Any) -> Any:
                # a pass of several parts has gone on to another by then
                with stream.reading(pack):
                    return _plain(*args, **kwargs)

            return checkpoint(again, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

        block.forward = forward
