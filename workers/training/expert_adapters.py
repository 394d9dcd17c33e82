"""The adapters of many jobs beside the experts of a mixture.

``transformers`` keeps one weight of all experts of a block in one tensor. Beside it an adapter has
a pair of matrices for each expert, one below the other in the layer's stack, as PEFT has them with
``target_parameters``. What an expert computes is the sum that the interface of ``transformers``
writes down (``batched_mm_experts_forward``), expert by expert; each job's tokens meet its own rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from workers.training.adapter_stack import AdapterStack
from workers.training.architectures import list_expert_weights
from workers.training.frozen_product import BLAS
from workers.training.multi_lora import Stream
from workers.training.segments_linear import apply_segments


class ExpertAdapters:
    """One frozen tensor of all experts of a block, and the adapters beside it."""

    def __init__(self, module: nn.Module, weight: str, stream: Stream) -> None:
        self._module: Any = module
        self._weight = weight
        self._stream = stream
        self.experts = int(self._module.num_experts)
        self.trained = AdapterStack(trains=True, experts=self.experts)
        self.answering = AdapterStack(trains=False, experts=self.experts)

    @property
    def device(self) -> torch.device:
        return getattr(self._module, self._weight).device

    @property
    def stack(self) -> AdapterStack:
        """The adapters that are used just now."""
        return self.answering if self._stream.answers else self.trained

    @property
    def is_used(self) -> bool:
        """Whether a job of the pack that is computed has an adapter here."""
        pack, slots = self._stream.pack, self.stack.slots
        return pack is not None and any(segment.job_id in slots for segment in pack.segments)

    def multiply(self, x_MD: torch.Tensor, tokens_M: np.ndarray, expert: int) -> torch.Tensor:
        """``[M, O]``: what an expert's weight makes of these tokens of the pack, in their order."""
        module: Any = self._module
        weight = getattr(module, self._weight)[expert]
        weight_OD = weight.T if module.is_transposed else weight
        bias_O = getattr(module, f"{self._weight}_bias")[expert] if module.has_bias else None
        pack, stack = self._stream.pack, self.stack
        spans: list[tuple[int, int, float, int, int, float]] = []
        for segment in () if pack is None else pack.segments:
            slot = stack.slots.get(segment.job_id)
            start, end = np.searchsorted(tokens_M, (segment.start, segment.end)).tolist()
            if slot is not None and start < end:
                rank = slot.rank // self.experts
                spans.append((slot.start + expert * rank, rank, slot.scale, start, end, 0.0))
        if not spans:
            return F.linear(x_MD, weight_OD, bias_O)
        matrices = stack.A_RD, stack.B_RO
        return apply_segments(x_MD, weight_OD, bias_O, *matrices, tuple(spans), None, BLAS)


def adapt_experts(module: nn.Module, stream: Stream) -> dict[str, ExpertAdapters]:
    """Have a block's experts use adapters; those by the names of their tensors.

    Where a pack has none of them, experts are computed as before.
    """
    found = {name: ExpertAdapters(module, name, stream) for name in list_expert_weights(module)}
    up, down = found.values()
    plain = module.forward

    def forward(
        hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        if not up.is_used and not down.is_used:
            return plain(hidden_states, top_k_index, top_k_weights)
        return _compute(module, up, down, hidden_states, top_k_index, top_k_weights)

    module.forward = forward
    return found


def _compute(
    module: Any,
    up: ExpertAdapters,
    down: ExpertAdapters,
    hidden_TD: torch.Tensor,
    chosen_TK: torch.Tensor,
    shares_TK: torch.Tensor,
) -> torch.Tensor:
    out_TD = torch.zeros_like(hidden_TD)
    # the one value of a block that the host waits for
    chosen = chosen_TK.cpu().numpy()
    for expert in np.unique(chosen).tolist():
        tokens_M, places_M = np.nonzero(chosen == expert)
        at_M, place_M = (
            torch.from_numpy(part).to(hidden_TD.device) for part in (tokens_M, places_M)
        )
        x = up.multiply(hidden_TD[at_M], tokens_M, expert)
        x = module._apply_gate(x) if module.has_gate else module.act_fn(x)
        x = down.multiply(x, tokens_M, expert)
        if module.has_post_expert_norm:
            x = module.post_expert_norm(x)
        x = x * shares_TK[at_M, place_M, None]
        out_TD.index_add_(0, at_M, x.to(out_TD.dtype))
    return out_TD
