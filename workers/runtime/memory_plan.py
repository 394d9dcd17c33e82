"""What fits beside a resident base: ``r_b + sum r_i <= C_km``.

The constraint is (4g) of the auction's paper; ``r_b`` is the base, ``r_i`` a job's
adapter, gradients, moments and its activations. Activations are not guessed from layer
sizes: a rehearsal counts the bytes autograd keeps per token, and the first pack after
each change of jobs counts them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import psutil
import torch

from workers.protocol.memory import LOSS_CHUNK_TOKENS, STATE_BYTES, USABLE_SHARE, PackSizing
from workers.training.faults import SystemFault
from workers.training.job import TrainingJob
from workers.training.packed_model import PackedModel
from workers.training.rehearsal import rehearsal
from workers.training.saved_bytes import SavedBytes

_REHEARSAL_TOKENS = 64


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """All sizes in GB (10^9 bytes)."""

    base_gb: float
    #: Kept by autograd for each token of a pack.
    token_gb: float
    #: The same when each block is recomputed in the backward pass.
    recomputed_token_gb: float
    #: Logits of one chunk of the loss.
    head_gb: float
    limit_gb: float
    #: By how much packs have taken more of the system's memory than is counted above.
    unforeseen_gb: float = 0.0

    def free_gb(self, states_gb: float) -> float:
        """What is left for activations beside the base and the jobs' states."""
        return self.limit_gb - self.base_gb - self.head_gb - self.unforeseen_gb - states_gb

    def measured(self, *, token_gb: float, recomputed: bool) -> MemoryPlan:
        """The plan with what a real pack used, where that was more."""
        if recomputed:
            # the blocks' inner tensors come and go in the backward pass and are not counted
            return replace(self, recomputed_token_gb=max(self.recomputed_token_gb, token_gb))
        return replace(self, token_gb=max(self.token_gb, token_gb))

    def grown(self, *, gb: float, tokens: int, token_gb: float) -> MemoryPlan:
        """The plan after the process grew by ``gb`` in a pack of so many tokens.

        What tensors do not explain is set aside from then on: kernels' workspaces, the
        allocator's rounding, gradients on their way back.
        """
        more = gb - tokens * token_gb - self.head_gb
        return replace(self, unforeseen_gb=max(self.unforeseen_gb, more))


def rehearse(model: PackedModel, *, base_gb: float, limit_gb: float) -> MemoryPlan:
    """Measure a base's activations by one small forward pass with an adapter on it."""
    with rehearsal(model, tokens=_REHEARSAL_TOKENS) as pack:
        with model.streaming(pack), SavedBytes(model.model) as saved:
            model.hidden(pack)
        length = pack.tokens
    config = model.model.config
    token = saved.total / length
    layers = config.num_hidden_layers
    kept = layers * config.hidden_size * model.model.dtype.itemsize
    # logits, log-probabilities and their difference, in float32
    rows = 0 if model.shape.encoder else LOSS_CHUNK_TOKENS[model.device.type]
    logits = 3 * 4 * rows * config.vocab_size
    return MemoryPlan(
        base_gb=base_gb,
        token_gb=token / 1e9,
        recomputed_token_gb=(token / layers + kept) / 1e9,
        head_gb=logits / 1e9,
        limit_gb=limit_gb,
    )


def state_gb(values: Iterable[torch.Tensor]) -> float:
    """Values, gradient and moments of an adapter."""
    return STATE_BYTES * sum(value.numel() for value in values) / 1e9


def fit(plan: MemoryPlan, *, states_gb: float, longest_tokens: int, most_tokens: int) -> PackSizing:
    """The largest pack that fits, recomputing only when it must.

    Parameters
    ----------
    longest_tokens : int
        The longest example of any job; a pack must hold at least it.
    most_tokens : int
        Packs need not be larger than this.

    Raises
    ------
    SystemFault
        When even the longest example does not fit; the numbers say by how much.
    """
    free = plan.free_gb(states_gb)
    for recompute, token_gb in ((False, plan.token_gb), (True, plan.recomputed_token_gb)):
        tokens = int(free / token_gb) if free > 0 else 0
        if tokens >= longest_tokens:
            # recomputing costs a third more arithmetic: rather pack less than recompute
            return PackSizing(min(tokens, max(most_tokens, longest_tokens)), recompute)
    need = plan.limit_gb - free + longest_tokens * plan.recomputed_token_gb
    raise SystemFault(
        f"This job does not fit: base and jobs need {need:.3f} GB with its longest row of "
        f"{longest_tokens} tokens, and the node may use {plan.limit_gb:.3f} GB. Lower rank or "
        "sequence length, or use a node with more memory."
    )


def job_memory_gb(plan: MemoryPlan, job: TrainingJob, state: float) -> float:
    """``r_i``: a job's state and the activations of its own batch."""
    batch = job.spec.training.batch_size
    rows = sorted((job.tokens_of(example) for example in job.data.train), reverse=True)
    return state + plan.token_gb * sum(rows[:batch])


def find_device_limit_gb(device: torch.device) -> float:
    """Memory the plan may use by default."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
    else:
        total = psutil.virtual_memory().total
    return USABLE_SHARE[device.type] * total / 1e9
