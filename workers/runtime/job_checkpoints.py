"""Checkpoints of running jobs: taken between steps, written beside the loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from workers.runtime.checkpoint_writer import CheckpointWriter
from workers.runtime.running_job import RunningJob, metrics_to_table
from workers.training.checkpoint import TrainingState


class JobCheckpoints:
    """Used from the loop's thread only.

    Parameters
    ----------
    post : callable
        Has something run on the loop's thread between two steps.
    tell : callable
        Calls a sink safely.
    """

    def __init__(
        self,
        *,
        post: Callable[[Callable[[], None]], None],
        tell: Callable[[Callable[[], None]], None],
    ) -> None:
        self._post = post
        self._tell = tell
        self._writer = CheckpointWriter()

    def close(self) -> None:
        """Finish what is being written."""
        self._writer.close()

    def want(self, running: RunningJob) -> None:
        """Have one written now, or right after the one being written."""
        if running.writing:
            running.checkpoint_wanted = True
        else:
            self.write(running)

    def write_if_due(self, running: RunningJob) -> None:
        """After a step: one that was asked for, or whose time has come."""
        if running.checkpoint_wanted or time.monotonic() >= running.checkpoint_due_at:
            self.write(running)

    def write(self, running: RunningJob) -> None:
        if running.writing:
            return
        running.writing = True
        running.checkpoint_wanted = False
        running.checkpoint_due_at = time.monotonic() + running.job.spec.checkpoint_every_s
        self._write(running, snapshot_job(running), then=lambda error: None)

    def write_last(
        self, running: RunningJob, state: TrainingState, then: Callable[[OSError | None], None]
    ) -> None:
        """Write the state of a job that leaves; ``then`` hears of the error, if there was one."""
        self._write(running, state, then=then)

    def _write(
        self, running: RunningJob, state: TrainingState, *, then: Callable[[OSError | None], None]
    ) -> None:
        def written(path: Path | None, error: OSError | None) -> None:
            def note() -> None:
                self._written(running, state, path, error)
                then(error)

            self._post(note)

        self._writer.write(state, running.directory, written)

    def _written(
        self, running: RunningJob, state: TrainingState, path: Path | None, error: OSError | None
    ) -> None:
        running.writing = False
        if path is None:
            running.log.append(f"A checkpoint was not written: {error}. Training goes on.")
            return
        running.checkpoint_path, running.checkpoint_step = path, state.progress.step
        self._tell(lambda: running.sink.checkpointed(path, state.progress.step))


def snapshot_job(running: RunningJob) -> TrainingState:
    """The job's state after its last step, copied to the CPU."""
    job = running.job
    params = {
        name: values.detach().to("cpu", copy=True)
        for name, values, _ in running.resident.model.tensors(job.job_id)
    }
    return TrainingState(
        job_id=job.job_id,
        fingerprint=running.fingerprint,
        progress=replace(job.progress),
        params=params,
        means={n: t.to("cpu", copy=True) for n, t in job.means.items()},
        squares={n: t.to("cpu", copy=True) for n, t in job.squares.items()},
        row_losses=job.row_losses.copy(),
        metrics=metrics_to_table(running.metrics),
    )
