"""Attention over a packed stream: each sequence sees itself and nothing else.

Registered with ``transformers`` under one name; a model told to use it gets no mask
(the library builds none for names it does not know) and the pack comes along as a
keyword argument of the forward pass. Sequences of like length are gathered into padded
rows and share one call of PyTorch's fused attention. Padding is on the right, so the
causal mask alone keeps real tokens from seeing it.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from workers.training.packing import Bucket, Pack

PACKED_ATTENTION = "finetender_packed"
log = logging.getLogger(__name__)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    pack: Pack,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Block-diagonal attention.

    Parameters
    ----------
    query, key, value : float[1, H, T, D]
        With rotary positions already applied; key and value may have fewer heads.
    pack : Pack
        Where sequences begin.

    Returns
    -------
    float[1, T, H, D]
    """
    causal = bool(getattr(module, "is_causal", True))
    if _flash.usable(query):
        attended = _flash.attend(query, key, value, pack, causal=causal, scaling=scaling)
        if attended is not None:
            return attended, None
    heads, width = query.shape[1], query.shape[3]
    if key.shape[1] != heads:
        repeats = heads // key.shape[1]
        key = key.repeat_interleave(repeats, dim=1)
        value = value.repeat_interleave(repeats, dim=1)
    out_THD: torch.Tensor | None = None
    for bucket in pack.buckets:
        rows = [_rows(stream, bucket) for stream in (query, key, value)]
        mask = None
        if not causal and bucket.key_mask is not None:
            mask = bucket.key_mask[:, None, None, :]
        attended_SHLD = F.scaled_dot_product_attention(
            rows[0], rows[1], rows[2], attn_mask=mask, is_causal=causal, scale=scaling
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

    Its signature and its demands on head width and hardware differ between releases, so
    the first refusal turns it off for good and the bucketed form takes over.
    """

    def __init__(self) -> None:
        self.works = True

    def usable(self, query: torch.Tensor) -> bool:
        return self.works and query.is_cuda and query.dtype in (torch.bfloat16, torch.float16)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        pack: Pack,
        *,
        causal: bool,
        scaling: float | None,
    ) -> torch.Tensor | None:
        try:
            from torch.nn.attention.varlen import varlen_attn

            out_THD = varlen_attn(
                query[0].transpose(0, 1).contiguous(),
                key[0].transpose(0, 1).contiguous(),
                value[0].transpose(0, 1).contiguous(),
                pack.starts_S,
                pack.starts_S,
                pack.longest,
                pack.longest,
                scale=scaling,
                window_size=(-1, 0) if causal else (-1, -1),
                enable_gqa=key.shape[1] != query.shape[1],
            )
        except torch.OutOfMemoryError:
            raise
        except (ImportError, TypeError, ValueError, RuntimeError) as error:
            log.warning("variable-length attention is not used here: %s", error)
            self.works = False
            return None
        assert isinstance(out_THD, torch.Tensor)
        return out_THD[None]


_flash = _Flash()
AttentionInterface.register(PACKED_ATTENTION, packed_attention)
