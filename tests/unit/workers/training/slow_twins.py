"""Slow twins of the fused forms: plain loops, one job and one sequence at a time."""

from __future__ import annotations

import torch

from workers.training import dropout
from workers.training.multi_lora import MultiLoRALinear
from workers.training.packing import Pack


def multi_lora_linear(layer: MultiLoRALinear, x_TD: torch.Tensor, pack: Pack) -> torch.Tensor:
    """``layer(x)`` for a pack, written as the definition of LoRA (Hu et al. 2021, eq. 3)."""
    rows = []
    at = 0
    for segment in pack.segments:
        x = x_TD[segment.start : segment.end]
        out = layer.base(x)
        slot = layer.stack.slots.get(segment.job_id)
        if slot is not None:
            stack, own = layer.stack, slice(slot.start, slot.start + slot.rank)
            assert stack.A_RD is not None
            assert stack.B_RO is not None
            if segment.dropout > 0:
                assert pack.dropout_keys_T is not None
                assert pack.dropout_threshold_T is not None
                columns = dropout.hash_columns(layer.name, layer.in_features, x.device)
                keep = dropout.draw_keep_mask(
                    pack.dropout_keys_T[segment.start : segment.end],
                    columns,
                    pack.dropout_threshold_T[segment.start : segment.end],
                )
                x = torch.where(keep, x / (1 - segment.dropout), torch.zeros_like(x))
            out = out + slot.scale * ((x @ stack.A_RD[own].T) @ stack.B_RO[own])
        rows.append(out)
        at = segment.end
    if at < len(x_TD):
        rows.append(layer.base(x_TD[at:]))
    return torch.cat(rows)


def attention(
    query_HTD: torch.Tensor,
    key_HTD: torch.Tensor,
    value_HTD: torch.Tensor,
    pack: Pack,
    *,
    causal: bool,
    scaling: float,
) -> torch.Tensor:
    """Block-diagonal attention, sequence by sequence; ``float[T, H, D]``."""
    repeats = query_HTD.shape[0] // key_HTD.shape[0]
    key_HTD = key_HTD.repeat_interleave(repeats, dim=0)
    value_HTD = value_HTD.repeat_interleave(repeats, dim=0)
    rows = []
    for start, end in zip(pack.starts[:-1], pack.starts[1:], strict=True):
        scores = scaling * query_HTD[:, start:end] @ key_HTD[:, start:end].transpose(1, 2)
        if causal:
            length = int(end - start)
            future = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(future, float("-inf"))
        rows.append((scores.softmax(-1) @ value_HTD[:, start:end]).transpose(0, 1))
    return torch.cat(rows)


def compute_token_nll(
    hidden_MD: torch.Tensor,
    head_VD: torch.Tensor,
    bias_V: torch.Tensor | None,
    targets_M: torch.Tensor,
) -> torch.Tensor:
    """Cross-entropy of each target over all logits at once."""
    logits_MV = torch.nn.functional.linear(hidden_MD, head_VD, bias_V).float()
    return torch.nn.functional.cross_entropy(logits_MV, targets_M, reduction="none")
