"""How a job does on rows it does not train on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workers.training.faults import is_out_of_memory, too_big
from workers.training.job import TrainingJob
from workers.training.objective import (
    cache_reference_losses,
    compute_example_losses,
    count_label_hits,
)
from workers.training.pack_plan import count_fitting
from workers.training.packed_model import PackedModel
from workers.training.packing import PackShare, build_pack


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an evaluation found."""

    #: Mean over what the job's loss is a mean of.
    loss: float
    #: PackShare of rows that got their own label; classification only.
    accuracy: float | None = None


@torch.no_grad()
def evaluate(
    model: PackedModel, job: TrainingJob, *, token_budget: int, pad_to: int
) -> Evaluation | None:
    """Loss and, for labels, accuracy over the held-out rows; ``None`` when there are none.

    When memory runs out it goes on in smaller packs.

    Raises
    ------
    SystemFault
        When a single row does not fit.
    """
    examples = job.data.valid
    if not examples:
        return None
    limit = min(token_budget, job.micro_tokens or token_budget)
    total, hits, start = 0.0, 0, 0
    while start < len(examples):
        sizes = [job.tokens_of(example) for example in examples[start:]]
        rows = range(start, start + max(1, count_fitting(sizes, limit)))
        try:
            loss, right = _of_rows(model, job, rows, pad_to=pad_to)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if len(rows) == 1:
                raise too_big(sizes[0]) from None
            limit = sum(sizes[: len(rows)]) // 2
            continue
        total, hits = total + loss, hits + right
        start = rows.stop
    accuracy = hits / len(examples) if job.data.kind == "labels" else None
    return Evaluation(total / job.loss_weight(list(examples)), accuracy)


def _of_rows(
    model: PackedModel, job: TrainingJob, rows: range, *, pad_to: int
) -> tuple[float, int]:
    """Summed loss, and for labels how many rows got theirs."""
    cache_reference_losses(model, job, rows, pad_to=pad_to, held_out=True)
    examples = tuple(job.data.valid[row] for row in rows)
    share = PackShare(job.job_id, examples, 0, 0, virtual_tokens=job.virtual_tokens)
    pack = build_pack([share], device=model.device, pad_to=pad_to)
    with model.streaming(pack):
        losses = compute_example_losses(model, pack, [job], [rows], held_out=True)
        hits = count_label_hits(model, pack) if job.data.kind == "labels" else 0
    return float(losses[0].sum()), hits
