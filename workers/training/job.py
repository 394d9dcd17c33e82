"""One job as the loop sees it: its examples, where it stands, and its moments."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from workers.protocol.job_bytes import JobNeed
from workers.protocol.job_spec import AdapterKind, JobSpec
from workers.protocol.row_order import shuffle_rows
from workers.protocol.work import RowLengths, WorkPlan
from workers.training.data import PreparedData
from workers.training.packing import Example, PackShare


@dataclass(slots=True)
class TrainingProgress:
    """What has been done; all of it is in a checkpoint."""

    #: Optimizer steps done.
    step: int = 0
    samples_done: int = 0
    #: Tokens fed forward for training.
    trained_tokens: int = 0
    first_train_loss: float | None = None
    last_train_loss: float | None = None
    valid_loss_before: float | None = None
    valid_loss_after: float | None = None
    #: Step and validation loss of the weights that early stopping would return, and evaluations
    #: since.
    best_step: int | None = None
    best_valid_loss: float | None = None
    evaluations_since_best: int = 0
    #: Nothing is left to do, whatever the step.
    stopped: bool = False
    #: A warm start that did not reach its target loss in its steps: it runs to its end.
    extended: bool = False


@dataclass(slots=True)
class StepBatch:
    """The optimizer step in the making; never in a checkpoint, simply begun again."""

    rows: np.ndarray
    #: Sum of the loss weights of all its examples, known before the first pack.
    weight: float
    #: Examples that are in packs.
    taken: int = 0
    loss: float = 0.0
    tokens: int = 0


@dataclass(slots=True)
class TrainingJob:
    """Everything of one job but its adapter's values, which are in the model's stacks."""

    spec: JobSpec
    data: PreparedData
    progress: TrainingProgress = field(default_factory=TrainingProgress)
    #: AdamW's moments by tensor name, in the shapes of the adapter's matrices.
    means: dict[str, torch.Tensor] = field(default_factory=dict)
    squares: dict[str, torch.Tensor] = field(default_factory=dict)
    #: The adapter at ``progress.best_step``, on the CPU, by tensor name; empty without one.
    best: dict[str, torch.Tensor] = field(default_factory=dict)
    #: Latest loss of each training row; NaN until it was seen.
    row_losses: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    batch: StepBatch | None = None
    #: Most tokens this job may put into a pack; halved when memory runs out.
    micro_tokens: int | None = None
    #: Frozen-base losses of preference rows, by row; they never change.
    reference_nll: dict[tuple[bool, int], tuple[float, float]] = field(default_factory=dict)
    #: How much work it is, step by step.
    work: WorkPlan = field(init=False)

    def __post_init__(self) -> None:
        if len(self.row_losses) != len(self.data.train):
            self.row_losses = np.full(len(self.data.train), np.nan, dtype=np.float32)
        self.work = WorkPlan(
            self.spec.work_costs,
            self.spec.training,
            train=self._count_lengths(self.data.train),
            valid=self._count_lengths(self.data.valid),
        )

    def _count_lengths(self, examples: tuple[Example, ...]) -> RowLengths:
        return RowLengths.of(
            [
                [
                    (len(sequence) + self.virtual_tokens, int(sequence.weights.sum()))
                    for sequence in example.sequences
                ]
                for example in examples
            ]
        )

    @property
    def job_id(self) -> str:
        return self.spec.job_id

    @property
    def virtual_tokens(self) -> int:
        """Tokens a soft prompt puts before each sequence."""
        adapter = self.spec.adapter
        return adapter.virtual_tokens if adapter.kind is AdapterKind.SOFT_PROMPT else 0

    @property
    def needs_reference(self) -> bool:
        """Whether its loss compares with the frozen base."""
        return self.data.kind == "pairs" and self.spec.training.preference_loss == "dpo"

    @property
    def memory_need(self) -> JobNeed:
        """What its memory depends on."""
        return JobNeed(self.spec.adapter, labels=len(self.data.labels))

    @property
    def steps_per_epoch(self) -> int:
        return self.work.steps_per_epoch

    @property
    def total_steps(self) -> int:
        """Steps of the present plan."""
        warm = self.spec.warm_start
        if warm is None or not warm.steps or self.progress.extended:
            return self.work.total_steps
        return min(warm.steps, self.work.total_steps)

    @property
    def schedule_start(self) -> int:
        """Step at which the learning rate's present schedule began."""
        warm = self.spec.warm_start
        return warm.steps if warm is not None and self.progress.extended else 0

    @property
    def units_done(self) -> int:
        """Work units of the steps done, evaluations included; at the end with the samples."""
        if self.progress.stopped:
            return self.work.count_ended_at(self.progress.step)
        return self.work.count_until(self.progress.step)

    @property
    def warmup_steps(self) -> int:
        """Of the present schedule."""
        length = self.total_steps - self.schedule_start
        return math.ceil(self.spec.training.warmup_share * length)

    @property
    def done(self) -> bool:
        return self.progress.stopped or self.progress.step >= self.total_steps

    @property
    def epoch(self) -> float:
        return self.progress.step / self.steps_per_epoch

    def batch_rows(self, step: int) -> np.ndarray:
        """Rows of an optimizer step: a pure function of seed and step."""
        epoch, index = divmod(step, self.steps_per_epoch)
        order = shuffle_rows(len(self.data.train), seed=self.spec.training.seed, epoch=epoch)
        size = self.spec.training.batch_size
        return order[index * size : (index + 1) * size]

    def current_batch(self) -> StepBatch:
        """The batch in the making, begun if there is none."""
        if self.batch is None:
            rows = self.batch_rows(self.progress.step)
            examples = [self.data.train[row] for row in rows]
            self.batch = StepBatch(rows=rows, weight=self.loss_weight(examples))
        return self.batch

    def tokens_of(self, example: Example) -> int:
        """Tokens an example takes in a pack, virtual ones included."""
        return example.token_count + self.virtual_tokens * len(example.sequences)

    def find_rows(self, share: PackShare) -> list[int]:
        """Rows of the training data behind a share of the current batch."""
        rows = self.current_batch().rows
        return rows[share.first_row : share.first_row + len(share.examples)].tolist()

    def note(self, share: PackShare, *, losses: list[float], loss: float) -> None:
        """Count examples of the current batch whose gradients have been added."""
        assert self.batch is not None
        rows = self.find_rows(share)
        for row, example, value in zip(rows, share.examples, losses, strict=True):
            per_token = self.data.kind == "tokens"
            self.row_losses[row] = value / example.trained_tokens if per_token else value
            self.batch.tokens += self.tokens_of(example)
        self.batch.loss += loss

    def loss_weight(self, examples: list[Example]) -> float:
        """What a sum of losses is divided by: trained tokens, pairs, or sequences."""
        if self.data.kind == "tokens":
            return float(sum(example.trained_tokens for example in examples))
        return float(len(examples))

    def note_validation(self, loss: float) -> bool:
        """Count an evaluation of the weights at the present step; whether they are to be kept.

        With early stopping, the weights of the lowest loss are kept, and the job ends after so many
        evaluations in a row that are no lower. Fresh weights are never kept.

        A job with a target score ends at the first evaluation of trained weights at or below it.

        A warm start that is still above its target loss after its steps goes on to the cold job's
        end. It ends earlier at the first evaluation that reaches the target.

        Parameters
        ----------
        loss : float
            On the held-out rows, finite.
        """
        self._note_target(loss)
        progress, patience = self.progress, self.spec.training.early_stopping
        target = self.spec.training.target_loss
        if progress.step and target > 0 and loss <= target:
            progress.stopped = True
        if not patience or (progress.step == 0 and self.spec.warm_start is None):
            return False
        if progress.best_valid_loss is None or loss < progress.best_valid_loss:
            progress.best_step, progress.best_valid_loss = progress.step, loss
            progress.evaluations_since_best = 0
            return True
        progress.evaluations_since_best += 1
        progress.stopped = progress.stopped or progress.evaluations_since_best >= patience
        return False

    def _note_target(self, loss: float) -> None:
        warm, progress = self.spec.warm_start, self.progress
        if warm is None or not warm.steps or warm.target_loss is None:
            return
        if progress.step < warm.steps:
            return
        if loss <= warm.target_loss:
            progress.stopped = True
        else:
            progress.extended = True
