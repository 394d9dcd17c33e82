"""One job on the node: what the loop must remember to report it well."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path

import numpy as np

from workers.protocol.reports import LookupFigures, ProgressEvent, RowOutlier, TextSample
from workers.runtime.job_sink import JobSink, JobSummary
from workers.runtime.memorised_rows import count_memorised_rows
from workers.runtime.resident import ResidentBase
from workers.training.evaluation import Evaluation
from workers.training.job import TrainingJob
from workers.training.step_results import StepResult

#: Least seconds between two progress events of a job.
PROGRESS_EVERY_S = 0.5
#: Steps over which speed is averaged.
_SPEED_STEPS = 20
#: Nats above the median from which a row may stand out: where everything is learnt, rows differ
#: by how long ago they were last seen.
_OUTLIER_EXCESS = 0.1


@dataclass(frozen=True, slots=True)
class MetricsRow:
    """A line of ``metrics.csv``."""

    step: int
    epoch: float
    train_loss: float | None = None
    valid_loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    tokens: int | None = None
    valid_accuracy: float | None = None


def metrics_to_table(rows: list[MetricsRow]) -> np.ndarray:
    """``float64[rows, columns]`` for a checkpoint; NaN where nothing was measured."""
    values = [[math.nan if v is None else v for v in astuple(row)] for row in rows]
    return np.asarray(values, dtype=np.float64).reshape(len(rows), len(fields(MetricsRow)))


def metrics_from_table(table: np.ndarray) -> list[MetricsRow]:
    """``metrics_to_table`` read back."""
    rows = []
    for values in table.tolist():
        known = [None if math.isnan(value) else value for value in values]
        # checkpoints of older releases have fewer columns
        known += [None] * (len(fields(MetricsRow)) - len(known))
        step, epoch, train_loss, valid_loss, learning_rate, grad_norm, tokens, accuracy = known
        rows.append(
            MetricsRow(
                step=int(step or 0),
                epoch=epoch or 0.0,
                train_loss=train_loss,
                valid_loss=valid_loss,
                learning_rate=learning_rate,
                grad_norm=grad_norm,
                tokens=None if tokens is None else int(tokens),
                valid_accuracy=accuracy,
            )
        )
    return rows


@dataclass(slots=True)
class RunningJob:
    job: TrainingJob
    resident: ResidentBase
    sink: JobSink
    directory: Path
    fingerprint: str
    #: Monotonic seconds.
    checkpoint_due_at: float
    seq: int = 0
    progress_at: float = float("-inf")
    metrics: list[MetricsRow] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    #: ``(monotonic seconds, tokens, samples and work units so far)`` of the last steps.
    speed: deque[tuple[float, int, int, int]] = field(
        default_factory=lambda: deque(maxlen=_SPEED_STEPS + 1)
    )
    last: StepResult | None = None
    valid_loss: float | None = None
    evaluated_step: int | None = None
    checkpoint_path: Path | None = None
    checkpoint_step: int | None = None
    #: A checkpoint is being written; another request waits for the next step after it.
    writing: bool = False
    checkpoint_wanted: bool = False
    peak_memory_gb: float | None = None
    #: Tokens of the longest example.
    longest_tokens: int = 0
    #: ``None`` until they are written, at the end.
    samples: tuple[TextSample, ...] | None = None
    #: Of a soft prompt whose start was looked up.
    lookup: LookupFigures | None = None
    #: Of a soft prompt that is done.
    copied_tokens: int | None = None
    #: It leaves after this step; ``None``: at its end, or when it is asked to.
    pause_at: int | None = None
    #: Seconds that attaching it took; Unix seconds of its first and last step since.
    attach_s: float | None = None
    first_step_at: float | None = None
    last_step_at: float | None = None

    def __post_init__(self) -> None:
        rows = (*self.job.data.train, *self.job.data.valid)
        self.longest_tokens = max(self.job.tokens_of(example) for example in rows)

    @property
    def starts_anew(self) -> bool:
        """Whether the job begins with its initial values and no checkpoint."""
        return self.job.progress.step == 0 and not self.job.means

    def describe_room(self) -> None:
        """Tell the owner what memory the job has, and how its base is computed."""
        resident = self.resident
        self.log.append(
            f"Memory: {resident.plan.base_gb:.3f} GB for the base, about "
            f"{resident.compute_job_gb(self.job):.3f} GB for this job; "
            f"{resident.describe_pack()}."
        )
        if not resident.model.is_packed:
            self.log.append(
                f"Bases of the type {resident.model.shape.model_type} run by their own code: "
                "jobs take turns and share no pass."
            )

    def stepped(self, step: StepResult) -> None:
        """Take note of an optimizer step."""
        self.last = step
        self.last_step_at = time.time()
        if self.first_step_at is None:
            self.first_step_at = self.last_step_at
        progress = self.job.progress
        self.speed.append(
            (
                time.monotonic(),
                progress.trained_tokens,
                progress.samples_done,
                self.job.units_done,
            )
        )
        self.metrics.append(
            MetricsRow(
                step.step,
                self.job.epoch,
                train_loss=step.loss,
                learning_rate=step.learning_rate,
                grad_norm=step.grad_norm,
                tokens=step.tokens,
            )
        )

    @property
    def is_evaluation_due(self) -> bool:
        """Whether the held-out rows are to be evaluated before the job's next step."""
        job, step = self.job, self.job.progress.step
        due = job.work.is_evaluated_at(step) or step == job.total_steps
        return bool(job.data.valid) and due and self.evaluated_step != step

    def evaluated(self, found: Evaluation) -> None:
        """Take note of an evaluation; the first is before, the latest after.

        Early stopping keeps the weights as they are now where they are the best so far.
        """
        self.evaluated_step = self.job.progress.step
        loss = self.valid_loss = found.loss
        if found.accuracy is not None:
            self.log.append(
                f"Accuracy on the held-out rows at step {self.evaluated_step}: "
                f"{found.accuracy:.1%} of {len(self.job.data.valid)}."
            )
        progress = self.job.progress
        if progress.step == 0:
            progress.valid_loss_before = loss
        else:
            progress.valid_loss_after = loss
        self.metrics.append(
            MetricsRow(
                progress.step, self.job.epoch, valid_loss=loss, valid_accuracy=found.accuracy
            )
        )
        was_extended = progress.extended
        if self.job.note_validation(loss):
            self.job.best = {
                name: values.detach().to("cpu", copy=True)
                for name, values, _ in self.resident.model.tensors(self.job.job_id)
            }
        if progress.extended and not was_extended:
            self.log.append(
                f"The warm start is not where it was expected to be after {progress.step} steps; "
                "training goes on, at no cost to you."
            )

    def keep_best(self) -> None:
        """At the end, bring back the weights of the lowest validation loss, if they are others."""
        progress = self.job.progress
        if progress.best_step is None or not self.job.best:
            return
        if progress.best_step != progress.step:
            for name, values, _ in self.resident.model.tensors(self.job.job_id):
                values.copy_(self.job.best[name])
        progress.valid_loss_after = progress.best_valid_loss
        self.log.append(
            f"The adapter has the weights of step {progress.best_step}, whose validation loss was "
            f"the lowest: {progress.best_valid_loss:.4f}."
        )

    @property
    def stopped_early(self) -> bool:
        """Whether early stopping or the target score ended the job before its last step."""
        training, progress = self.job.spec.training, self.job.progress
        patience, loss = training.early_stopping, progress.valid_loss_after
        learns_no_more = bool(patience) and progress.evaluations_since_best >= patience
        target = training.target_loss
        is_at_target = target > 0 and loss is not None and loss <= target
        return (learns_no_more or is_at_target) and progress.step < self.job.work.total_steps

    def report(self, *, force: bool = False) -> None:
        """Send a progress event, unless one was sent less than half a second ago."""
        now = time.monotonic()
        if not force and now - self.progress_at < PROGRESS_EVERY_S:
            return
        self.progress_at = now
        self.seq += 1
        job, last = self.job, self.last
        tokens_per_s, samples_per_s, units_per_s = self._speeds()
        left = job.work.count_ended_at(job.total_steps) - job.units_done
        event = ProgressEvent(
            seq=self.seq,
            at=time.time(),
            step=job.progress.step,
            total_steps=job.total_steps,
            epoch=job.epoch,
            samples_done=job.progress.samples_done,
            units_done=job.units_done,
            train_loss=job.progress.last_train_loss,
            valid_loss=self.valid_loss if self.evaluated_step == job.progress.step else None,
            learning_rate=None if last is None else last.learning_rate,
            grad_norm=None if last is None else last.grad_norm,
            tokens_per_s=tokens_per_s,
            samples_per_s=samples_per_s,
            eta_s=left / units_per_s if units_per_s else None,
            memory_gb=self.peak_memory_gb,
            log=tuple(self.log),
        )
        self.log.clear()
        self.sink.progress(event)

    def summary(self) -> JobSummary:
        progress = self.job.progress
        return JobSummary(
            job_id=self.job.job_id,
            step=progress.step,
            total_steps=self.job.total_steps,
            samples_done=progress.samples_done,
            first_train_loss=progress.first_train_loss,
            last_train_loss=progress.last_train_loss,
            valid_loss_before=progress.valid_loss_before,
            valid_loss_after=progress.valid_loss_after,
            trained_tokens=progress.trained_tokens,
            units_done=self.job.units_done,
            peak_memory_gb=self.peak_memory_gb,
            outliers=find_row_outliers(self.job),
            samples=self.samples or (),
            stopped_early=self.stopped_early,
            best_step=progress.best_step,
            lookup=self.lookup,
            copied_tokens=self.copied_tokens,
            memorised_rows=count_memorised_rows(self.job),
            attach_s=self.attach_s,
            first_step_at=self.first_step_at,
            last_step_at=self.last_step_at,
            checkpoint_path=self.checkpoint_path,
            checkpoint_step=self.checkpoint_step,
        )

    def _speeds(self) -> tuple[float | None, float | None, float | None]:
        """Tokens, samples and work units a second over the last steps."""
        if len(self.speed) < 2:
            return None, None, None
        (then, *before), (now, *after) = self.speed[0], self.speed[-1]
        seconds = max(now - then, 1e-9)
        tokens, samples, units = (
            (new - old) / seconds for old, new in zip(before, after, strict=True)
        )
        return tokens, samples, units


def find_row_outliers(job: TrainingJob, *, most: int = 20) -> tuple[RowOutlier, ...]:
    """Rows whose last loss is far above the others', worst first.

    Far means more than five robust standard deviations (1.4826 times the median absolute
    deviation) above the median, and far enough to matter to anybody.
    """
    losses = job.row_losses
    seen = np.isfinite(losses)
    if seen.sum() < 8:
        return ()
    median = float(np.median(losses[seen]))
    spread = 1.4826 * float(np.median(np.abs(losses[seen] - median)))
    limit = median + max(5 * spread, _OUTLIER_EXCESS)
    worst = [int(i) for i in np.argsort(-np.where(seen, losses, -np.inf)) if losses[i] > limit]
    return tuple(
        RowOutlier(job.data.train[i].line, round(float(losses[i]), 6)) for i in worst[:most]
    )
