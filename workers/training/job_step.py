"""One job's optimizer step, and its end where training diverged."""

from __future__ import annotations

import torch

from workers.training.faults import UserFault
from workers.training.job import StepBatch, TrainingJob
from workers.training.optimizer import adamw_step, compute_learning_rate
from workers.training.step_results import StepFailure, StepResult


def step_job(
    job: TrainingJob,
    names: list[str],
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    *,
    norm: float,
) -> StepResult:
    """Step a job whose batch is complete, and empty its gradients.

    Parameters
    ----------
    names, params, grads : list
        Of its adapter's tensors, in one order; the gradients are clipped.
    norm : float
        Of the gradients before they were clipped.
    """
    training, progress = job.spec.training, job.progress
    assert job.batch is not None
    batch: StepBatch = job.batch
    rate = compute_learning_rate(
        schedule=training.schedule,
        base_rate=training.learning_rate,
        step=progress.step - job.schedule_start,
        total=job.total_steps - job.schedule_start,
        warmup=job.warmup_steps,
    )
    adamw_step(
        params=params,
        grads=grads,
        means=[job.means[name] for name in names],
        squares=[job.squares[name] for name in names],
        step=progress.step,
        rate=rate,
        weight_decay=training.weight_decay,
    )
    torch._foreach_zero_(grads)  # pyright: ignore[reportPrivateImportUsage]
    job.batch = None
    progress.step += 1
    progress.samples_done += len(batch.rows)
    progress.trained_tokens += batch.tokens
    progress.last_train_loss = batch.loss
    if progress.first_train_loss is None:
        progress.first_train_loss = batch.loss
    return StepResult(
        job_id=job.job_id,
        step=progress.step,
        loss=batch.loss,
        grad_norm=norm,
        learning_rate=rate,
        tokens=batch.tokens,
        samples=len(batch.rows),
    )


def fail_diverged(job: TrainingJob, what: str) -> StepFailure:
    """The end of a job whose loss or gradient is no finite number."""
    return StepFailure(
        job.job_id,
        UserFault(
            f"The {what} was no longer a finite number at step {job.progress.step + 1}: "
            "training diverged. Lower the learning rate or check the data for unusual rows."
        ),
    )
