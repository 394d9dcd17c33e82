"""Attention over a packed stream: each sequence sees itself and nothing else.

Registered with ``transformers`` under one name; a model set to use it gets no mask
(the library builds none for names it does not know) and the pack comes along as a
keyword argument of the forward pass. Sequences of like length are gathered into padded
rows and share one call of PyTorch's fused attention. Padding is on the right, so the
causal mask alone keeps real tokens from seeing it.
"""

from __future__ import annotations

import functools
import inspect
import logging
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from workers.training.packing import Bucket, Pack

PACKED_ATTENTION = "finetender_packed"
log = logging.getLogger(__name__)


def attend_packed(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    pack: Pack,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Block-diagonal attention.

    Parameters
    ----------
    query, key, value : float[1, H, T, D]
        With rotary positions already applied; key and value may have fewer heads.
    pack : Pack
        Where sequences begin.
    sliding_window : int, optional
        How many tokens a token sees, itself included; all before it by default.

    Returns
    -------
    float[1, T, H, D]
    """
    if pack.key_values is not None:
        attended = pack.key_values.attend(
            module, query, key, value, scaling=scaling, window=sliding_window
        )
        return attended, None
    causal = bool(getattr(module, "is_causal", True))
    if _flash.usable(query, key):
        attended = _flash.attend(
            query, key, value, pack, causal=causal, scaling=scaling, window=sliding_window
        )
        if attended is not None:
            return attended, None
    # values may be narrower than keys
    heads, width = query.shape[1], value.shape[3]
    key, value = _repeat_heads(key, query), _repeat_heads(value, query)
    out_THD: torch.Tensor | None = None
    for bucket in pack.buckets:
        rows = [_rows(stream, bucket) for stream in (query, key, value)]
        mask = None
        if not causal and bucket.key_mask is not None:
            mask = bucket.key_mask[:, None, None, :]
        if causal and sliding_window is not None and bucket.length > sliding_window:
            mask = _build_window_mask(bucket.length, sliding_window, query.device)
        attended_SHLD = F.scaled_dot_product_attention(
            *rows, attn_mask=mask, is_causal=causal and mask is None, scale=scaling
        )
        flat = attended_SHLD.transpose(1, 2).reshape(-1, heads, width)
        if bucket.gather is None:
            return flat.unsqueeze(0), None
        assert bucket.real is not None
        assert bucket.stream is not None
        if out_THD is None:
            out_THD = flat.new_zeros(query.shape[2], heads, width)
        out_THD = out_THD.index_copy(0, bucket.stream, flat.index_select(0, bucket.real))
    assert out_THD is not None
    return out_THD.unsqueeze(0), None


def _build_window_mask(length: int, window: int, device: torch.device) -> torch.Tensor:
    """``bool[L, L]``: what each token sees when it sees so many at most."""
    place_L = torch.arange(length, device=device)
    distance_LL = place_L[:, None] - place_L[None]
    return (distance_LL >= 0) & (distance_LL < window)


def _rows(stream_1HTD: torch.Tensor, bucket: Bucket) -> torch.Tensor:
    """``float[S, H, L, D]``: the bucket's sequences, padded on the right."""
    stream_THD = stream_1HTD[0].transpose(0, 1)
    if bucket.gather is not None:
        stream_THD = _GatherRows.apply(stream_THD, bucket.gather, bucket.real, bucket.stream)
    shape = (bucket.sequences, bucket.length, *stream_THD.shape[1:])
    return stream_THD.reshape(shape).transpose(1, 2)


class _GatherRows(torch.autograd.Function):
    """``index_select`` whose backward is a copy: no real token is gathered twice.

    A padded place holds its sequence's first token, but nothing real attends to it, so
    its gradient is zero and may be left out.
    """

    @staticmethod
    def forward(ctx: Any, stream, gather, real, back):
        ctx.save_for_backward(real, back)
        ctx.shape = stream.shape
        return stream.index_select(0, gather)

    @staticmethod
    def backward(ctx: Any, *grads):
        real, back = ctx.saved_tensors
        grad = grads[0].new_zeros(ctx.shape)
        grad.index_copy_(0, back, grads[0].index_select(0, real))
        return grad, None, None, None


class _Flash:
    """PyTorch's variable-length attention: one kernel for a whole pack, on CUDA only.

    Its signature and its demands on head width and hardware differ between releases. What it
    refuses goes through the bucketed form from then on, for tensors of the same widths and type
    only: another base of the process may well be accepted.
    """

    def __init__(self) -> None:
        #: Widths and types that were refused.
        self.refused: set[tuple[int, torch.dtype, bool]] = set()

    def usable(self, query: torch.Tensor, key: torch.Tensor) -> bool:
        is_half = query.dtype in (torch.bfloat16, torch.float16)
        return query.is_cuda and is_half and _describe(query, key) not in self.refused

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        pack: Pack,
        *,
        causal: bool,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor | None:
        described = _describe(query, key)
        try:
            varlen_attn, shares_keys = _load_kernel()
            options: dict[str, Any] = {"scale": scaling}
            before = -1 if window is None else window - 1
            options["window_size"] = (before, 0) if causal else (-1, -1)
            if shares_keys:
                options["enable_gqa"] = key.shape[1] != query.shape[1]
            else:
                # this release wants as many heads of keys and values as of queries
                key, value = _repeat_heads(key, query), _repeat_heads(value, query)
            out_THD = varlen_attn(
                query[0].transpose(0, 1).contiguous(),
                key[0].transpose(0, 1).contiguous(),
                value[0].transpose(0, 1).contiguous(),
                pack.starts_S,
                pack.starts_S,
                pack.longest,
                pack.longest,
                **options,
            )
        except torch.OutOfMemoryError:
            raise
        except (ImportError, TypeError, ValueError, RuntimeError) as error:
            log.warning("variable-length attention is not used here: %s", error)
            self.refused.add(described)
            return None
        assert isinstance(out_THD, torch.Tensor)
        return out_THD[None]


@functools.cache
def _load_kernel() -> tuple[Any, bool]:
    """The kernel of this release, and whether it lets queries share keys.

    Raises
    ------
    ImportError
        When this release has none.
    """
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn, "enable_gqa" in inspect.signature(varlen_attn).parameters


def list_refused() -> list[tuple[int, torch.dtype, bool]]:
    """Widths of heads, types, and whether keys are shared, of what the kernel refused so far."""
    return list(_flash.refused)


def _describe(query: torch.Tensor, key: torch.Tensor) -> tuple[int, torch.dtype, bool]:
    """What a kernel may refuse: the width of a head, the type, and shared keys."""
    return query.shape[3], query.dtype, key.shape[1] != query.shape[1]


def _repeat_heads(values: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """``[1, H, T, D]`` with as many heads as the query has."""
    repeats = query.shape[1] // values.shape[1]
    return values if repeats == 1 else values.repeat_interleave(repeats, dim=1)


_flash = _Flash()
AttentionInterface.register(PACKED_ATTENTION, attend_packed)
