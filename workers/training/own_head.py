"""The output layer as a model's own code computes it.

Some families scale their logits, or cap them, after the product with the output embeddings. The
model's own forward pass is asked for them, with given hidden states in the place of its blocks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_outputs import MoeModelOutputWithPast

from workers.protocol.pass_bytes import LOSS_CHUNK_TOKENS
from workers.training.architectures import find_backbone


class _Given(MoeModelOutputWithPast):
    """Hidden states as a backbone gives them; whatever else its head asks for is not there."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class OwnHead:
    """Logits and losses from hidden states, by the model's own code.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A decoder. Its blocks run as before whenever no hidden states are given.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        #: In the place of what the blocks would give.
        self._given: torch.Tensor | None = None
        backbone: Any = find_backbone(model)
        plain = backbone.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._given is None:
                return plain(*args, **kwargs)
            return _Given(last_hidden_state=self._given)  # type: ignore[arg-type]

        backbone.forward = forward

    def compute_logits(self, hidden_MD: torch.Tensor) -> torch.Tensor:
        """``float[M, V]``."""
        tokens = torch.zeros(1, len(hidden_MD), dtype=torch.int64, device=hidden_MD.device)
        self._given = hidden_MD[None]
        try:
            return self._model(input_ids=tokens, use_cache=False).logits[0]
        finally:
            self._given = None

    def compute_nll(self, hidden_MD: torch.Tensor, targets_M: torch.Tensor) -> torch.Tensor:
        """Negative log-likelihood of each target, ``float32[M]``.

        Logits exist for one chunk of tokens at a time, and again in the backward pass.
        """
        size = LOSS_CHUNK_TOKENS[hidden_MD.device.type]
        chunks = zip(hidden_MD.split(size), targets_M.split(size), strict=True)
        parts = [
            checkpoint(self._compute_chunk, hidden, targets, use_reentrant=False)
            for hidden, targets in chunks
        ]
        return torch.cat(parts)  # type: ignore[arg-type]

    def _compute_chunk(self, hidden_MD: torch.Tensor, targets_M: torch.Tensor) -> torch.Tensor:
        logits_MV = self.compute_logits(hidden_MD).float()
        return F.cross_entropy(logits_MV, targets_M, reduction="none")
