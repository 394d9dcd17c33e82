"""Several devices for one soft prompt: each adds up the gradient of its part of a batch.

Data parallel training, with the trainer in charge: it owns the prompt, its optimizer and its
checkpoints. It sends every member the prompt's values and some of the batch's rows, and adds the
returned gradients to its own. A loss is a sum over rows divided by the whole batch's weight, so the
sum of the parts' gradients is the batch's gradient; only the order of additions differs from that
of one device. What travels is a prompt each way, some hundred kilobytes at most, whatever the base
is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

import numpy as np
import torch

from workers.protocol.adapter_names import PROMPT
from workers.protocol.job_spec import AdapterKind, AdapterSpec
from workers.training.job import TrainingJob
from workers.training.objective import compute_sequence_nll
from workers.training.packed_model import PackedModel
from workers.training.packing import Example, PackShare, build_pack

#: The name under which a member has the prompt in its model.
_PART = "part"


class GangLost(RuntimeError):
    """A member is gone; what it had is computed again by those left."""


@dataclass(frozen=True, slots=True)
class GangPart:
    """Rows of one job's batch, for one member."""

    share: PackShare
    #: ``float32[V, D]``
    prompt_VD: np.ndarray
    #: Sum of the loss weights of the whole batch.
    weight: float


@dataclass(frozen=True, slots=True)
class PartGradient:
    """What a member found."""

    #: ``float32[V, D]``: what the part adds to the batch's gradient.
    gradient_VD: np.ndarray
    #: Loss of each example, not yet divided by the weight.
    per_row: list[float]


class Gang(Protocol):
    """Members beside the trainer's own device, each with the base loaded."""

    @property
    def members(self) -> int:
        """How many there are now; none while they load or once one is lost."""
        ...

    def begin(self, parts: Sequence[Sequence[GangPart]]) -> None:
        """Set every member to work on its parts."""
        ...

    def collect(self) -> list[list[PartGradient]]:
        """Wait for what ``begin`` asked for.

        Raises
        ------
        GangLost
        """
        ...

    def close(self) -> None:
        """End the members."""
        ...


def compute_part(model: PackedModel, part: GangPart, *, pad_to: int = 1) -> PartGradient:
    """Compute one part forward and backward; the model is as before.

    Parameters
    ----------
    model : PackedModel
        The same base as the trainer's.
    part : GangPart
    pad_to : int
        As the trainer's.
    """
    adapter = AdapterSpec(kind=AdapterKind.SOFT_PROMPT, virtual_tokens=len(part.prompt_VD))
    model.attach(_PART, adapter, {PROMPT: torch.from_numpy(part.prompt_VD.copy())})
    try:
        pack = build_pack([replace(part.share, job_id=_PART)], device=model.device, pad_to=pad_to)
        with model.streaming(pack):
            nll_S = compute_sequence_nll(model, pack, model.hidden(pack))
            nll_S = nll_S[: len(part.share.examples)]
            (nll_S.sum() / part.weight).backward()
        [(_, _, gradient)] = model.tensors(_PART)
        return PartGradient(gradient.cpu().numpy().copy(), nll_S.detach().cpu().tolist())
    finally:
        model.detach(_PART)


def can_divide(job: TrainingJob) -> bool:
    """Whether a gang may share a job: a soft prompt on plain rows."""
    return job.virtual_tokens > 0 and job.data.kind == "tokens"


def divide_shares(
    shares: Sequence[PackShare],
    jobs: Mapping[str, TrainingJob],
    *,
    members: int,
    token_budget: int,
) -> tuple[list[PackShare], list[list[PackShare]]]:
    """Divide what soft prompts put into a pack, and more of their batches, among a gang.

    Parameters
    ----------
    shares : sequence of PackShare
        What the trainer would compute alone.
    jobs : mapping of str to TrainingJob
        By id, those of the shares.
    members : int
        Devices beside the trainer's own.
    token_budget : int
        Most tokens of one part.

    Returns
    -------
    own : list of PackShare
        What the trainer computes itself, no more than before.
    theirs : list of list of PackShare
        What each member does, one share a job; they follow the trainer's own in the batch, in the
        order of the members.
    """
    own: list[PackShare] = []
    theirs: list[list[PackShare]] = [[] for _ in range(members)]
    for share in shares:
        job = jobs[share.job_id]
        if not can_divide(job):
            own.append(share)
            continue
        batch = job.current_batch()
        left = tuple(job.data.train[row] for row in batch.rows[batch.taken :])
        cuts = _cut_evenly(job, left, parts=members + 1, token_budget=token_budget)
        first = min(cuts[0], len(share.examples))
        own.append(replace(share, examples=left[:first]))
        # What the trainer leaves is not the members' to make up for: the next round has it.
        at = first
        for member, end in enumerate(cuts[1:]):
            if first == cuts[0] and end > at:
                theirs[member].append(
                    replace(share, examples=left[at:end], first_row=share.first_row + at)
                )
                at = end
    return own, theirs


def _cut_evenly(
    job: TrainingJob, examples: Sequence[Example], *, parts: int, token_budget: int
) -> list[int]:
    """Where each part ends, so that all have about as many tokens; the first has an example."""
    tokens = [job.tokens_of(example) for example in examples]
    sums = [0, *accumulate(tokens)]
    ends, at = [], 0
    for part in range(parts):
        bound = sums[-1] * (part + 1) / parts
        end = at
        while end < len(tokens) and sums[end + 1] - sums[at] <= token_budget:
            # An example belongs to the part in which its middle is.
            if (sums[end] + sums[end + 1]) / 2 > bound:
                break
            end += 1
        if part == 0:
            end = max(end, 1)
        ends.append(end)
        at = end
    return ends
