"""Checkpoints of running jobs, from the training loop to the disk.

A checkpoint passes these states, in this order; the first three are here, the rest is the
node's (``workers.node``):

=========  =================  =======================================================
state      thread             function
=========  =================  =======================================================
taken      training           ``CheckpointPipe.take``: the tensors are copied to the CPU
written    checkpoints        ``CheckpointPipe._write_files``: one atomic file, synced
announced  training           ``CheckpointPipe._announce``: the job's sink gets the path
linked     node               ``SliceLoop._checkpointed``: a second name in the outbox
sent       upload             ``Sender._upload``: PUT under the slice's lease
stored     node               ``Sender._checkpoint_done``: the second name is removed
=========  =================  =======================================================

A job goes on from the checkpoint that the market names, and from no other: the market may have
set a later one aside. ``workers train --resume`` has no market; there the newest is the one
that was written last.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Queue

from workers.protocol.memory import GB
from workers.runtime.memory_plan import find_host_gb
from workers.runtime.running_job import RunningJob, metrics_to_table
from workers.training.checkpoint import TrainingState, save_checkpoint

#: Checkpoints of a job on disk: the newest, and the one before it.
FILES_PER_JOB = 2

Call = Callable[[], None]
#: Called with how writing ended: ``None``, or what went wrong.
Then = Callable[[OSError | None], None]


@dataclass(frozen=True, slots=True)
class _TakenCheckpoint:
    """A job's state on the CPU, waiting to be written."""

    running: RunningJob
    state: TrainingState
    then: Then


class CheckpointPipe:
    """Public methods are called on the training loop's thread only.

    Parameters
    ----------
    post : callable
        Has something run on the loop's thread between two steps.
    tell : callable
        Calls a sink safely.
    limit_bytes : float, optional
        Once so much waits for the disk, jobs that go on wait with their checkpoints, and the loop
        with jobs that leave; by default an eighth of the host's memory, shared by its GPUs.
    """

    def __init__(
        self,
        *,
        post: Callable[[Call], None],
        tell: Callable[[Call], None],
        limit_bytes: float | None = None,
    ) -> None:
        self._post = post
        self._tell = tell
        self._limit_bytes = find_host_gb() * GB / 4 if limit_bytes is None else limit_bytes
        self._waiting_bytes = 0
        self._room = threading.Condition()
        self._queue: Queue[_TakenCheckpoint | None] = Queue()
        self._thread = threading.Thread(target=self._write_files, name="checkpoints", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what is taken, then stop; may be called from any thread."""
        self._queue.put(None)
        self._thread.join()

    def request(self, running: RunningJob) -> None:
        """Have a checkpoint taken now, or right after the one being written."""
        if running.writing or self._is_full:
            running.checkpoint_wanted = True
        else:
            self._take_between(running)

    def take_if_due(self, running: RunningJob) -> None:
        """After a step: take one that was asked for, or whose time has come."""
        due = running.checkpoint_wanted or time.monotonic() >= running.checkpoint_due_at
        if due and not running.writing and not self._is_full:
            self._take_between(running)

    def take(self, running: RunningJob, state: TrainingState, then: Then) -> None:
        """Queue a state for writing once there is room; its tensors must not change any more."""
        with self._room:
            self._room.wait_for(lambda: not self._is_full)
            self._waiting_bytes += state.nbytes
        self._queue.put(_TakenCheckpoint(running, state, then))

    @property
    def _is_full(self) -> bool:
        return self._waiting_bytes > self._limit_bytes

    def _take_between(self, running: RunningJob) -> None:
        running.writing = True
        running.checkpoint_wanted = False
        running.checkpoint_due_at = time.monotonic() + running.job.spec.checkpoint_every_s
        self.take(running, snapshot_job(running), then=lambda error: None)

    # On the writer's thread.

    def _write_files(self) -> None:
        while (taken := self._queue.get()) is not None:
            running, step = taken.running, taken.state.progress.step
            path = running.directory / format_checkpoint_name(step)
            error: OSError | None = None
            try:
                save_checkpoint(taken.state, path)
            # whatever it is, it is this job's alone: others wait for this thread
            except Exception as caught:
                error = caught if isinstance(caught, OSError) else OSError(str(caught))
            with self._room:
                self._waiting_bytes -= taken.state.nbytes
                self._room.notify()
            if error is None:
                for old in list_checkpoints(running.directory)[FILES_PER_JOB:]:
                    with contextlib.suppress(OSError):
                        old.unlink()
            # not with the state, whose memory is free again
            self._post(partial(self._announce, running, step, path, error, taken.then))
            del taken

    # On the loop's thread again.

    def _announce(
        self, running: RunningJob, step: int, path: Path, error: OSError | None, then: Then
    ) -> None:
        running.writing = False
        if error is None:
            running.checkpoint_path, running.checkpoint_step = path, step
            self._tell(lambda: running.sink.checkpointed(path, step))
        else:
            running.log.append(f"A checkpoint was not written: {error}. Training goes on.")
        then(error)


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
        # never changed in place
        best=dict(job.best),
    )


def format_checkpoint_name(step: int) -> str:
    return f"step-{step:08d}.safetensors"


def list_checkpoints(directory: Path) -> list[Path]:
    """A job's checkpoints on disk, the one written last first.

    Not by step: what a run left that began again later, or the damaged end of an earlier
    one, may be further on and is older all the same.
    """
    found: list[tuple[int, str, Path]] = []
    for path in directory.glob("step-*.safetensors"):
        # the writer may be removing an old one just now
        with contextlib.suppress(FileNotFoundError):
            found.append((path.stat().st_mtime_ns, path.name, path))
    return [path for _, _, path in sorted(found, reverse=True)]
