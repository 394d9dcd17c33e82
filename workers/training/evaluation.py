"""How a job does on rows it does not train on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workers.training.faults import is_out_of_memory, refuse_row_too_big
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
    #: Share of rows that got their own label; classification only.
    accuracy: float | None = None


class EvaluationRun:
    """An evaluation under way, one pack at a time, so that neighbours train in between.

    Its job must not step before it is over. When memory runs out it goes on in smaller packs.

    Parameters
    ----------
    token_budget : int
        Tokens of a pack.
    """

    def __init__(self, job: TrainingJob, *, token_budget: int) -> None:
        self.job = job
        self._limit = min(token_budget, job.micro_tokens or token_budget)
        self._total, self._hits, self._next = 0.0, 0, 0

    def run_pack(self, model: PackedModel, *, pad_to: int) -> Evaluation | None:
        """Evaluate the next rows; the result once all are done.

        Raises
        ------
        SystemFault
            When a single row does not fit.
        """
        examples = self.job.data.valid
        sizes = [self.job.tokens_of(example) for example in examples[self._next :]]
        rows = range(self._next, self._next + max(1, count_fitting(sizes, self._limit)))
        try:
            loss, right = _evaluate_rows(model, self.job, rows, pad_to=pad_to)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if len(rows) == 1:
                raise refuse_row_too_big(sizes[0]) from None
            self._limit = sum(sizes[: len(rows)]) // 2
            return None
        self._total, self._hits = self._total + loss, self._hits + right
        self._next = rows.stop
        if self._next < len(examples):
            return None
        accuracy = self._hits / len(examples) if self.job.data.kind == "labels" else None
        return Evaluation(self._total / self.job.loss_weight(list(examples)), accuracy)


@torch.no_grad()
def _evaluate_rows(
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
