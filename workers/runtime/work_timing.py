"""What work takes on this device: optimizer steps of known sequences, timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from workers.protocol.job_spec import AdapterSpec, BlobRef, DataFormat, JobSpec, TrainingSpec
from workers.protocol.node_facts import WorkMeasurement
from workers.runtime.resident import ResidentBase
from workers.training.data import PreparedData, RowCounts
from workers.training.evaluation import EvaluationRun
from workers.training.job import TrainingJob
from workers.training.packing import Example, TokenSequence
from workers.training.step_results import StepFailure

#: Longer rows than this say nothing more about a device.
LONGEST_TOKENS = 2048
_RANK = 16


@dataclass(frozen=True, slots=True)
class TimedRows:
    """Rows to train on for some optimizer steps."""

    name: str
    #: Tokens of each row, as a share of the model's context, or of ``LONGEST_TOKENS`` where that is
    #: less; as many for each step as ``batch``.
    shares: tuple[float, ...]
    batch: int
    #: Share of each row's tokens that the loss counts; they are its last ones.
    trained: float = 1.0


def spread_evenly(low: float, high: float, rows: int) -> tuple[float, ...]:
    """Lengths from low to high, in an order that mixes short and long ones."""
    step = (high - low) / rows
    lengths = [low + step * (place + 0.5) for place in range(rows)]
    return tuple(lengths[(place * 7) % rows] for place in range(rows))


def time_work(
    resident: ResidentBase,
    cases: Sequence[TimedRows],
    *,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[WorkMeasurement]:
    """Time one job's steps on each case's rows, and passes over them without a backward one.

    The cases are taken in turns and the best time of each counts, since what else the machine does
    only ever adds time. Call while no job is on the base model, on the thread that may use it.

    Parameters
    ----------
    clock : callable
        Gives seconds; on CPUs ``time.process_time`` is disturbed least by other processes.
    """
    resident.apply_threads()
    jobs = [_build_job(resident, case) for case in cases]
    seconds = [float("inf")] * len(cases)
    forward = list(seconds)
    for _ in range(repeats):
        for index, job in enumerate(jobs):
            step_s, forward_s = _time_job(resident, job, clock)
            seconds[index] = min(seconds[index], step_s)
            forward[index] = min(forward[index], forward_s)
    return [
        _describe(resident, job, seconds=best, forward_seconds=best_forward)
        for job, best, best_forward in zip(jobs, seconds, forward, strict=True)
    ]


def _build_job(resident: ResidentBase, case: TimedRows) -> TrainingJob:
    """A job of one epoch over the rows, which are held out as well."""
    random = np.random.default_rng(0)
    longest = min(resident.model.context_length, LONGEST_TOKENS)
    vocabulary = resident.model.shape.vocab_size
    rows: list[Example] = []
    for share in case.shares:
        tokens = int(np.clip(round(share * longest), 4, longest))
        weights = np.zeros(tokens, dtype=np.float32)
        weights[max(1, tokens - round(case.trained * tokens)) :] = 1
        rows.append(Example(1, (TokenSequence(random.integers(0, vocabulary, tokens), weights),)))
    spec = JobSpec(
        job_id="timing",
        base_model=resident.ref,
        data_format=DataFormat.TEXT,
        dataset=BlobRef(url="", sha256="", bytes=0),
        adapter=AdapterSpec(rank=_RANK, alpha=2.0 * _RANK),
        training=TrainingSpec(
            epochs=2, batch_size=case.batch, learning_rate=1e-6, schedule="constant"
        ),
    )
    examples = tuple(rows)
    report = RowCounts(len(rows), len(rows), len(rows), 0, 0, longest, (), (), "")
    return TrainingJob(spec, PreparedData(examples, examples, "tokens", report))


def _time_job(
    resident: ResidentBase, job: TrainingJob, clock: Callable[[], float]
) -> tuple[float, float]:
    """Seconds of the second epoch's steps, and of a pass over its rows without a backward one."""
    trainer = resident.trainer
    job.progress = replace(job.progress, step=job.steps_per_epoch - 1)
    job.batch = None
    job.means.clear()
    job.squares.clear()
    trainer.add(job, resident.model.draw_initial_values(job.spec.adapter, seed=0))
    try:
        # The last step of the first epoch warms up.
        _step_until(resident, job, job.steps_per_epoch)
        began = _read(resident, clock)
        _step_until(resident, job, job.total_steps)
        stepped = _read(resident, clock)
        run = EvaluationRun(job, token_budget=trainer.token_budget)
        while run.run_pack(trainer.model, pad_to=trainer.pad_to) is None:
            pass
        return stepped - began, _read(resident, clock) - stepped
    finally:
        trainer.remove(job.job_id)


def _step_until(resident: ResidentBase, job: TrainingJob, step: int) -> None:
    while job.progress.step < step:
        for result in resident.trainer.round():
            if isinstance(result, StepFailure):
                raise result.fault


def _read(resident: ResidentBase, clock: Callable[[], float]) -> float:
    if resident.model.device.type == "cuda":
        torch.cuda.synchronize(resident.model.device)
    return clock()


def _describe(
    resident: ResidentBase, job: TrainingJob, *, seconds: float, forward_seconds: float
) -> WorkMeasurement:
    lengths = [example.token_count for example in job.data.train]
    return WorkMeasurement(
        base_model=resident.ref.name,
        steps=job.steps_per_epoch,
        sequences=len(lengths),
        tokens=sum(lengths),
        trained_tokens=sum(example.trained_tokens for example in job.data.train),
        token_pairs=sum(length * length for length in lengths),
        even=len(set(lengths)) == 1,
        seconds=seconds,
        forward_seconds=forward_seconds,
    )
