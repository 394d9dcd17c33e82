"""Losses over trained tokens, without ever holding all logits."""

from __future__ import annotations

from typing import Any

import torch

from workers.protocol.pass_bytes import LOSS_CHUNK_TOKENS
from workers.training.frozen_product import BLAS, FrozenProducts


def compute_token_nll(
    hidden_MD: torch.Tensor,
    head_VD: torch.Tensor,
    bias_V: torch.Tensor | None,
    targets_M: torch.Tensor,
    *,
    chunk_tokens: int | None = None,
    products: FrozenProducts = BLAS,
) -> torch.Tensor:
    """Negative log-likelihood of each target, as ``float32[M]``.

    The output layer is frozen, so the gradient towards the hidden states is the only
    one needed; it is made chunk by chunk in the forward pass, for a unit weight of each
    token, and scaled in the backward pass (the idea of Liger's fused linear
    cross-entropy, Hsu et al. 2024, section 3.2, with per-token weights).

    Parameters
    ----------
    hidden_MD : float[M, D]
        Hidden states at the positions that predict.
    head_VD : float[V, D]
        Output embeddings.
    chunk_tokens : int, optional
        By default ``LOSS_CHUNK_TOKENS`` of the device.
    """
    chunk_tokens = chunk_tokens or LOSS_CHUNK_TOKENS[hidden_MD.device.type]
    if hidden_MD.requires_grad and torch.is_grad_enabled():
        return _TokenNll.apply(hidden_MD, head_VD, bias_V, targets_M, chunk_tokens, products)  # type: ignore[no-any-return]
    parts = [
        _chunk_nll(hidden, head_VD, bias_V, targets, products)[0]
        for hidden, targets in zip(
            hidden_MD.split(chunk_tokens), targets_M.split(chunk_tokens), strict=True
        )
    ]
    return torch.cat(parts)


def _chunk_nll(
    hidden_MD: torch.Tensor,
    head_VD: torch.Tensor,
    bias_V: torch.Tensor | None,
    targets_M: torch.Tensor,
    products: FrozenProducts,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits_MV = products.apply(hidden_MD, head_VD, bias_V).float()
    log_probs_MV = torch.log_softmax(logits_MV, dim=-1)
    return -log_probs_MV.gather(1, targets_M[:, None])[:, 0], log_probs_MV


class _TokenNll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_MD, head_VD, bias_V, targets_M, chunk_tokens, products):
        nll_M = torch.empty(len(hidden_MD), dtype=torch.float32, device=hidden_MD.device)
        grad_MD = torch.empty_like(hidden_MD)
        for start in range(0, len(hidden_MD), chunk_tokens):
            chunk = slice(start, start + chunk_tokens)
            targets = targets_M[chunk]
            nll_M[chunk], log_probs_MV = _chunk_nll(
                hidden_MD[chunk], head_VD, bias_V, targets, products
            )
            probs_MV = log_probs_MV.exp_()
            minus_one = probs_MV.new_full((1, 1), -1.0).expand(len(targets), 1)
            probs_MV.scatter_add_(1, targets[:, None], minus_one)
            grad_MD[chunk] = products.apply(probs_MV.to(head_VD.dtype), head_VD.T, None)
        ctx.save_for_backward(grad_MD)
        return nll_M

    @staticmethod
    def backward(ctx: Any, *grads):
        (grad_MD,) = ctx.saved_tensors
        return grad_MD * grads[0][:, None].to(grad_MD.dtype), None, None, None, None, None


def sum_by_sequence(
    values_M: torch.Tensor, sequence_M: torch.Tensor, sequences: int
) -> torch.Tensor:
    """``float32[S]``: the sum of each sequence's tokens."""
    return values_M.new_zeros(sequences).index_add(0, sequence_M, values_M)


def compute_preference_losses(
    policy_nll_S: torch.Tensor, reference_nll_S: torch.Tensor, beta: float
) -> torch.Tensor:
    """DPO loss of each pair (Rafailov et al. 2023, eq. 7).

    Parameters
    ----------
    policy_nll_S, reference_nll_S : float32[S]
        Summed negative log-likelihoods; preferred and rejected sequences alternate.
        The reference is the frozen base without any adapter.
    """
    margin_S = reference_nll_S - policy_nll_S
    return -torch.nn.functional.logsigmoid(beta * (margin_S[0::2] - margin_S[1::2]))


def compute_odds_losses(
    nll_S: torch.Tensor, tokens_S: torch.Tensor, *, weight: float
) -> torch.Tensor:
    """ORPO loss of each pair (Hong et al. 2024, eq. 6 and 7): no reference is needed.

    The first term is the mean over the tokens of the preferred answer alone. TRL's counts those of
    the prompt as well, and takes it over the tokens of a batch and not pair by pair.

    Parameters
    ----------
    nll_S : float32[S]
        Summed negative log-likelihoods; preferred and rejected sequences alternate.
    tokens_S : int64[S]
        Trained tokens of each.
    weight : float
        Lambda of the paper.
    """
    mean_S = -nll_S / tokens_S
    # a sequence that is certain has infinite odds
    odds_S = mean_S - torch.log(-torch.expm1(mean_S.clamp(max=-1e-6)))
    return -mean_S[0::2] - weight * torch.nn.functional.logsigmoid(odds_S[0::2] - odds_S[1::2])
