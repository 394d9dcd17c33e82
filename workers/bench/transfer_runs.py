"""Training runs of the transfer experiment: many adapters beside each other on one base.

The runs of a group step together, each on its own rows, as a node's jobs do; a run's numbers are
those that it would have alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from workers.bench.transfer_tasks import TransferTask, write_task
from workers.models import BUNDLED_PREFIX, TINY
from workers.protocol.job_spec import (
    AdapterSpec,
    BaseModelRef,
    BlobRef,
    DataFormat,
    JobSpec,
    TrainingSpec,
    WarmStart,
)
from workers.runtime.resident import ResidentBase
from workers.training.data import PreparedData, TokenizerEncoder, prepare_data
from workers.training.fused_trainer import FusedTrainer
from workers.training.job import TrainingJob
from workers.training.objective import compute_example_losses
from workers.training.packing import PackShare, build_pack
from workers.training.step_results import EvaluationResult, StepFailure

Values = dict[str, torch.Tensor]

#: Rows of the target that a donor is probed on.
PROBE_ROWS = 16
#: A run has reached the cold one when its loss is at most this much above.
REACHED = 1.01
#: Rows of the same task that are no rows of the target come from another seed.
OTHER_ROWS = 1_000
LEARNING_RATE = 1e-3
RANK = 8
BASE = BaseModelRef(name=TINY, source=f"{BUNDLED_PREFIX}{TINY}")
ADAPTER = AdapterSpec(rank=RANK, alpha=2.0 * RANK)


@dataclass(frozen=True, slots=True)
class TransferSize:
    """How much is trained."""

    tasks: tuple[TransferTask, ...]
    seeds: int
    rows: int
    batch_size: int
    #: Steps of a cold run, and between looks at the held-out rows.
    steps: int
    every: int
    #: The same where runs are sold: a job of so many steps is evaluated that often.
    sold_every: int
    #: Pairs that are also trained together.
    spatial_pairs: int
    #: Steps that warm starts are sold: from another task's adapter, and from one of the same task.
    sold: tuple[int, ...]
    sold_near: tuple[int, ...]


@dataclass(slots=True)
class TransferRun:
    """A job, what its adapter begins with, and when it is over before its last step."""

    job: TrainingJob
    values: Values
    is_over: Callable[[TrainingJob, float], bool] = lambda job, loss: False
    #: Loss on held-out rows at each look, the first before any step.
    losses: list[float] = field(default_factory=list[float])
    adapter: Values = field(default_factory=dict[str, torch.Tensor])


@dataclass(frozen=True, slots=True)
class ColdRun:
    """A task trained from the base."""

    task: TransferTask
    data: PreparedData
    adapter: Values
    losses: tuple[float, ...]
    #: Steps until it was about where it ended.
    steps: int
    #: Loss of the base on the rows that donors are probed on.
    base_loss: float
    #: Mean squared gradients of the first batch.
    embedding: np.ndarray

    @property
    def loss(self) -> float:
        """On held-out rows after the last step."""
        return self.losses[-1]


class ColdRuns:
    """Tasks trained from the base, with two sets of rows each; all at once when one is asked for.

    Parameters
    ----------
    schedule : str
        Of the learning rate; with ``constant`` there is no warm-up.
    """

    def __init__(
        self, base: ResidentBase, size: TransferSize, seed: int, folder: Path, schedule: str
    ) -> None:
        self.size, self.seed, self.schedule = size, seed, schedule
        #: Steps between looks at the held-out rows.
        self.every = size.every if schedule == "constant" else size.sold_every
        self._base, self._folder = base, folder
        self._known: dict[tuple[str, int], ColdRun] = {}

    def get(self, task: TransferTask, *, other_rows: bool = False) -> ColdRun:
        if not self._known:
            for at in (self.seed, self.seed + OTHER_ROWS):
                self._known |= {(cold.task.name, at): cold for cold in self._train(at)}
        return self._known[task.name, self.seed + OTHER_ROWS * other_rows]

    def build_job(self, name: str, data: PreparedData, *, steps: int, sold: int = 0) -> TrainingJob:
        """A job of so many steps; with ``sold`` it goes on after those under a new schedule."""
        return build_job(name, data, self.size, self.seed, steps, self.schedule, sold)

    def _train(self, seed: int) -> list[ColdRun]:
        size, base = self.size, self._base
        runs: list[TransferRun] = []
        for task in size.tasks:
            data = _read_task(base, task, size, seed, self._folder)
            job = build_job(task.name, data, size, seed, size.steps, self.schedule)
            runs.append(TransferRun(job, draw_initial(base, seed)))
        base_losses = probe(base, size, [(run.job.data, run.values) for run in runs])
        embeddings = [_find_first_gradients(base, run.job.data, size, seed) for run in runs]
        train_together(base.trainer, runs, every=self.every)
        return [
            ColdRun(
                task,
                run.job.data,
                run.adapter,
                tuple(run.losses),
                next(i for i, loss in enumerate(run.losses) if loss <= REACHED * run.losses[-1])
                * self.every,
                base_loss,
                embedding,
            )
            for task, run, base_loss, embedding in zip(
                size.tasks, runs, base_losses, embeddings, strict=True
            )
        ]


def build_job(
    name: str,
    data: PreparedData,
    size: TransferSize,
    seed: int,
    steps: int,
    schedule: str,
    sold: int = 0,
) -> TrainingJob:
    """A job on data of ``size``; see ``ColdRuns.build_job``."""
    per_epoch = -(-len(data.train) // size.batch_size)
    training = TrainingSpec(
        epochs=max(1, -(-steps // per_epoch)),
        batch_size=size.batch_size,
        learning_rate=LEARNING_RATE,
        schedule=schedule,
        seed=seed,
    )
    if schedule == "constant":
        training = replace(training, warmup_share=0.0)
    nothing = BlobRef(url="", sha256="", bytes=0)
    spec = JobSpec(
        job_id=name,
        base_model=BASE,
        data_format=DataFormat.INSTRUCTION,
        dataset=nothing,
        adapter=ADAPTER,
        training=training,
        # No loss is that low: the run shows what comes after the steps that were sold, too.
        warm_start=WarmStart(nothing, steps=sold, target_loss=0.0) if sold else None,
    )
    return TrainingJob(spec, data)


def train_together(trainer: FusedTrainer, runs: Sequence[TransferRun], *, every: int) -> None:
    """Train runs side by side, each to its last step or until it is over, and fill them in."""
    left = {run.job.job_id: run for run in runs}
    for name, run in left.items():
        trainer.add(run.job, run.values)
        trainer.start_evaluation(name)
    while left:
        while (found := trainer.evaluate_next()) is not None:
            if isinstance(found, StepFailure):
                raise found.fault
            _note(trainer, left, found, every)
        for result in trainer.round():
            if isinstance(result, StepFailure):
                raise result.fault
            if result.step % every == 0 or left[result.job_id].job.done:
                trainer.start_evaluation(result.job_id)


def _note(
    trainer: FusedTrainer, left: dict[str, TransferRun], found: EvaluationResult, every: int
) -> None:
    run, loss = left[found.job_id], found.found.loss
    run.job.note_validation(loss)
    # A start is also looked at where the steps that were sold end.
    if run.job.progress.step % every == 0 or run.job.done:
        run.losses.append(loss)
    if run.job.done or run.is_over(run.job, loss):
        tensors = trainer.model.tensors(found.job_id)
        run.adapter = {name: values.clone() for name, values, _ in tensors}
        trainer.remove(found.job_id)
        del left[found.job_id]


def probe(
    base: ResidentBase, size: TransferSize, starts: Sequence[tuple[PreparedData, Values]]
) -> list[float]:
    """Loss of each adapter on the first rows of its job, before it has seen them."""
    found: list[float] = []
    trainer = base.trainer
    for number, (data, values) in enumerate(starts):
        rows = replace(data, valid=data.train[:PROBE_ROWS])
        name = str(number)
        job = build_job(name, rows, size, 0, 1, "constant")
        trainer.add(job, values)
        found.append(look(trainer, job))
        trainer.remove(name)
    return found


def look(trainer: FusedTrainer, job: TrainingJob) -> float:
    """Loss on the held-out rows of a job that is alone in the loop."""
    trainer.start_evaluation(job.job_id)
    while (result := trainer.evaluate_next()) is None:
        pass
    if isinstance(result, StepFailure):
        raise result.fault
    return result.found.loss


def step(trainer: FusedTrainer, job: TrainingJob) -> None:
    """One optimizer step of a job that is alone in the loop."""
    before = job.progress.step
    while job.progress.step == before:
        for result in trainer.round():
            if isinstance(result, StepFailure):
                raise result.fault


def scale(adapter: Mapping[str, torch.Tensor], factor: float) -> Values:
    """A copy of an adapter with its B scaled."""
    return {
        name: tensor * factor if name.endswith(".lora_B") else tensor.clone()
        for name, tensor in adapter.items()
    }


def draw_initial(base: ResidentBase, seed: int) -> Values:
    """What a run from the base begins with."""
    return base.model.draw_initial_values(ADAPTER, seed=seed)


def _read_task(
    base: ResidentBase, task: TransferTask, size: TransferSize, seed: int, folder: Path
) -> PreparedData:
    path = folder / f"{task.name}.jsonl"
    write_task(task, path, rows=size.rows, seed=seed)
    return prepare_data(
        encoder=TokenizerEncoder(base.tokenizer),
        data_path=path,
        validation_path=None,
        data_format=DataFormat.INSTRUCTION,
        skip_lines=(),
        sequence_length=128,
        validation_share=0.2,
        seed=seed,
    )


def _find_first_gradients(
    base: ResidentBase, data: PreparedData, size: TransferSize, seed: int
) -> np.ndarray:
    """Squared gradients of the adapter's matrices on the first batch, layer by layer."""
    rows = range(size.batch_size)
    examples = tuple(data.train[row] for row in rows)
    job = build_job("profile", data, size, seed, 1, "constant")
    base.model.attach("profile", job.spec.adapter, draw_initial(base, 0))
    pack = build_pack([PackShare("profile", examples, 0, 0)], device=base.model.device)
    with base.model.streaming(pack):
        losses = compute_example_losses(base.model, pack, [job], [rows])
        losses[0].sum().backward()
    squares = [
        grad.detach().double().square().flatten().numpy().copy()
        for _, _, grad in base.model.tensors("profile")
        if grad is not None
    ]
    base.model.detach("profile")
    return np.concatenate(squares)
