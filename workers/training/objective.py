"""What each example adds to its job's loss: tokens, preferences or classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F

from workers.training.job import TrainingJob
from workers.training.loss import compute_odds_losses, compute_preference_losses, sum_by_sequence
from workers.training.packed_model import PackedModel
from workers.training.packing import Pack, PackShare, build_pack


def compute_example_losses(
    model: PackedModel,
    pack: Pack,
    jobs: Sequence[TrainingJob],
    rows: Sequence[Sequence[int]],
    *,
    held_out: bool = False,
) -> list[torch.Tensor]:
    """Losses of a pack's examples; call inside ``model.streaming(pack)``.

    Parameters
    ----------
    jobs, rows
        Job and row numbers behind each share of the pack.

    Returns
    -------
    list of float32[E]
        Per share. A job's loss is their sum over ``TrainingJob.loss_weight``.
    """
    hidden_TD = model.hidden(pack)
    if model.shape.encoder:
        return _label_losses(model, pack, hidden_TD)
    nll_S = compute_sequence_nll(model, pack, hidden_TD)
    losses = []
    start = 0
    for share, job, share_rows in zip(pack.shares, jobs, rows, strict=True):
        end = start + sum(len(example.sequences) for example in share.examples)
        part_S = nll_S[start:end]
        if job.data.kind == "pairs" and not job.needs_reference:
            tokens_S = [int(s.weights.sum()) for e in share.examples for s in e.sequences]
            part_S = compute_odds_losses(
                part_S,
                torch.tensor(tokens_S, device=part_S.device),
                weight=job.spec.training.dpo_beta,
            )
        elif job.data.kind == "pairs":
            known = [job.reference_nll[held_out, row] for row in share_rows]
            reference_S = torch.tensor(known, device=part_S.device).reshape(-1)
            part_S = compute_preference_losses(part_S, reference_S, job.spec.training.dpo_beta)
        losses.append(part_S)
        start = end
    return losses


@torch.no_grad()
def cache_reference_losses(
    model: PackedModel,
    job: TrainingJob,
    rows: Sequence[int],
    *,
    pad_to: int,
    held_out: bool = False,
) -> None:
    """Losses of the bare base on preference rows not seen before; they never change."""
    if not job.needs_reference:
        return
    examples = job.data.valid if held_out else job.data.train
    missing = [row for row in rows if (held_out, row) not in job.reference_nll]
    if not missing:
        return
    share = PackShare(job.job_id, tuple(examples[row] for row in missing), 0, 0)
    pack = build_pack([share], device=model.device, pad_to=pad_to)
    with model.streaming(pack, adapters=False):
        nll_S = compute_sequence_nll(model, pack, model.hidden(pack))
    for row, (chosen, rejected) in zip(
        missing, nll_S[: 2 * len(missing)].reshape(-1, 2).tolist(), strict=True
    ):
        job.reference_nll[held_out, row] = (chosen, rejected)


def compute_sequence_nll(model: PackedModel, pack: Pack, hidden_TD: torch.Tensor) -> torch.Tensor:
    """``float32[S]``: each sequence's summed loss; call inside ``model.streaming(pack)``."""
    hidden_MD = hidden_TD.index_select(0, pack.predict_M)
    nll_M = model.compute_nll(hidden_MD, pack.targets_M)
    return sum_by_sequence(nll_M, pack.sequence_M, len(pack.starts) - 1)


def _label_losses(model: PackedModel, pack: Pack, hidden_TD: torch.Tensor) -> list[torch.Tensor]:
    return [
        F.cross_entropy(logits, labels, reduction="none")
        for logits, labels in _classified(model, pack, hidden_TD)
    ]


def _classified(
    model: PackedModel, pack: Pack, hidden_TD: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Per share, logits ``[E, labels]`` and the true labels."""
    first_SD = hidden_TD[pack.starts_S[:-1]]
    start = 0
    for share in pack.shares:
        end = start + len(share.examples)
        logits = model.classify(share.job_id, first_SD[start:end])
        yield logits, torch.tensor([e.label for e in share.examples], device=logits.device)
        start = end


def count_label_hits(model: PackedModel, pack: Pack) -> int:
    """How many rows of a pack get their own label; call inside ``model.streaming(pack)``."""
    pairs = _classified(model, pack, model.hidden(pack))
    return sum(int((logits.argmax(1) == labels).sum()) for logits, labels in pairs)
