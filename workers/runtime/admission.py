"""What happens to a job before it enters the loop: checks, data, and its state if it has one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from workers.protocol.job_settings import SettingError, check_adapter, check_training
from workers.protocol.job_spec import AdapterKind, DataFormat, JobSpec
from workers.runtime.job_sink import JobSink
from workers.runtime.resident import ResidentBase
from workers.runtime.running_job import RunningJob, metrics_from_table
from workers.training.checkpoint import (
    CorruptCheckpointError,
    TrainingState,
    fingerprint,
    load_checkpoint,
)
from workers.training.data import TokenizerEncoder, prepare_data
from workers.training.faults import SystemFault, UserFault
from workers.training.job import TrainingJob
from workers.training.samples import name_stop_tokens
from workers.training.start_values import load_start_values


def check_settings(job: JobSpec) -> None:
    """Refuse settings no run can have, before anything is loaded.

    Raises
    ------
    UserFault
        Naming the setting and its range.
    """
    try:
        check_training(job.training)
        check_adapter(job.adapter)
    except SettingError as error:
        raise UserFault(f"This job cannot run: {error.sentence}. Change the setting.") from None


def prepare(
    job: JobSpec,
    *,
    resident: ResidentBase,
    data_path: Path,
    validation_path: Path | None,
    checkpoint_paths: Sequence[Path],
    directory: Path,
    sink: JobSink,
    start_path: Path | None = None,
) -> tuple[RunningJob, dict[str, torch.Tensor]]:
    """Read the data and the checkpoint; nothing of it touches the loop.

    Returns
    -------
    RunningJob, dict
        The job and its adapter's tensors by name.

    Raises
    ------
    UserFault, SystemFault
        As ``NodeRuntime.attach``.
    """
    check_match(job, encoder=resident.model.shape.encoder)
    data = prepare_data(
        encoder=TokenizerEncoder(
            resident.tokenizer, stops=name_stop_tokens(resident.model, resident.tokenizer)
        ),
        data_path=data_path,
        validation_path=validation_path,
        data_format=job.data_format,
        skip_lines=job.skip_lines,
        sequence_length=choose_sequence_length(job, resident.model.context_length),
        validation_share=job.training.validation_share,
        seed=job.training.seed,
    )
    print_of_job = fingerprint(job, data_sha256=data.report.sha256)
    running = RunningJob(
        job=TrainingJob(job, data),
        resident=resident,
        sink=sink,
        directory=directory,
        fingerprint=print_of_job,
        checkpoint_due_at=time.monotonic() + job.checkpoint_every_s,
        log=list(data.report.sentences()),
    )
    _check_can_stop(running.job)
    state = _resume(running, checkpoint_paths) if checkpoint_paths else None
    if state is not None:
        return running, state.params
    labels = len(data.labels)
    if job.warm_start is None:
        return running, resident.model.draw_initial_values(
            job.adapter, seed=job.training.seed, labels=labels, tokenizer=resident.tokenizer
        )
    if start_path is None:
        raise SystemFault("The adapter to start from is not on this node. Try again.")
    shapes = resident.model.list_shapes(job.adapter, labels=labels)
    values = load_start_values(start_path, shapes=shapes, scale=job.warm_start.scale)
    running.log.append("Starts from an earlier adapter's weights.")
    return running, values


def _check_can_stop(job: TrainingJob) -> None:
    """Refuse early stopping and a target score without rows to see them by.

    Raises
    ------
    UserFault
    """
    training = job.spec.training
    if (training.early_stopping or training.target_loss) and not job.data.valid:
        raise UserFault(
            "Early stopping and a target score look at the loss on held-out rows, and this job "
            "holds out none. Give a larger validation share, or switch them off."
        )


def _resume(running: RunningJob, paths: Sequence[Path]) -> TrainingState | None:
    """Bring the job to the state of the first whole checkpoint; ``None`` when there is none."""
    state = _read_first_whole(paths, running)
    if state is None:
        running.log.append("No checkpoint is whole; the job starts again from step 0.")
        return None
    job = running.job
    job.progress = replace(state.progress)
    job.means, job.squares = dict(state.means), dict(state.squares)
    job.row_losses = state.row_losses.copy()
    job.best = dict(state.best)
    running.metrics = metrics_from_table(state.metrics)
    running.valid_loss = job.progress.valid_loss_after or job.progress.valid_loss_before
    evaluated = [row.step for row in running.metrics if row.valid_loss is not None]
    running.evaluated_step = evaluated[-1] if evaluated else None
    running.log.append(f"Continues from step {job.progress.step}.")
    return state


def _read_first_whole(paths: Sequence[Path], running: RunningJob) -> TrainingState | None:
    """The first of this job's checkpoints that can be read; logs why those before cannot."""
    for path in paths:
        try:
            state = load_checkpoint(path)
        except CorruptCheckpointError as error:
            running.log.append(f"A checkpoint was passed over: {error}.")
            if path.parent == running.directory:
                # it must not push out a whole one when the next is written
                path.unlink(missing_ok=True)
            continue
        if state.fingerprint == running.fingerprint:
            return state
        if path == paths[0]:
            raise SystemFault(
                "The checkpoint belongs to another job or to other settings. Start the job again."
            )
    return None


def choose_sequence_length(job: JobSpec, context_length: int) -> int:
    """Tokens a row may have: what was asked, as far as the model's context goes."""
    virtual = job.adapter.virtual_tokens if job.adapter.kind is AdapterKind.SOFT_PROMPT else 0
    left = context_length - virtual
    if left < 2:
        raise UserFault(
            f"A soft prompt of {virtual} tokens leaves no room in the model's context of "
            f"{context_length}. Use fewer."
        )
    return min(job.training.sequence_length, left)


def check_match(job: JobSpec, *, encoder: bool) -> None:
    """Refuse data or adapters that the kind of base model cannot learn.

    Raises
    ------
    UserFault
        Saying what the base model needs.
    """
    classes = job.data_format is DataFormat.CLASSIFICATION
    if encoder and not classes:
        raise UserFault(
            "This base model is an encoder: it learns rows with text and label only. Choose "
            "another base model for this data."
        )
    if classes and not encoder:
        raise UserFault(
            "Rows with text and label need an encoder base model. Use prompt and completion rows "
            "for this one."
        )
    if encoder and job.adapter.kind is AdapterKind.SOFT_PROMPT:
        raise UserFault("Encoders cannot learn a soft prompt here. Use LoRA.")
