"""Checkpoints that wait for a slow disk: of how many jobs the host's memory holds the state."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.workers.node.slice_world import training_state
from workers.runtime import checkpoint_pipe
from workers.runtime.checkpoint_pipe import CheckpointPipe

#: Of a state, whatever is in it.
STATE_BYTES = training_state(step=1).nbytes


class Disk:
    """Writes a state whenever it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns = threading.Semaphore(0)
        self.written: list[int] = []
        monkeypatch.setattr(checkpoint_pipe, "save_checkpoint", self._write)
        monkeypatch.setattr(checkpoint_pipe, "snapshot_job", lambda job: training_state(step=9))

    def _write(self, state: Any, path: Any) -> None:
        assert self.turns.acquire(timeout=30)
        self.written.append(state.progress.step)
        if state.progress.step == 4:
            raise MemoryError


@pytest.fixture
def disk(monkeypatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def pipe(disk) -> Iterator[CheckpointPipe]:
    pipe = CheckpointPipe(
        post=SimpleQueue().put, tell=lambda call: call(), limit_bytes=1.5 * STATE_BYTES
    )
    yield pipe
    disk.turns.release(10)
    pipe.close()


def job(tmp_path) -> Any:
    return SimpleNamespace(
        directory=tmp_path,
        writing=False,
        checkpoint_wanted=False,
        checkpoint_due_at=0.0,
        job=SimpleNamespace(spec=SimpleNamespace(checkpoint_every_s=60.0)),
    )


def test_a_job_that_goes_on_waits_with_its_checkpoint_and_one_that_leaves_for_the_disk(
    pipe, disk, tmp_path
):
    jobs = [job(tmp_path) for _ in range(4)]
    for one in jobs[:3]:
        pipe.take_if_due(one)
    pipe.request(jobs[3])
    assert [one.writing for one in jobs] == [True, True, False, False]
    assert [one.checkpoint_wanted for one in jobs] == [False, False, False, True]
    leaving = threading.Thread(
        target=pipe.take, args=(jobs[3], training_state(step=4), lambda error: None)
    )
    leaving.start()
    disk.turns.release()
    leaving.join(30)
    assert disk.written == [9]
    # There is as much as before.
    pipe.take_if_due(jobs[2])
    assert not jobs[2].writing
    # No error of a job's own holds up the others for good.
    disk.turns.release(2)
    pipe.take(jobs[0], training_state(step=5), lambda error: None)
    disk.turns.release()
    pipe.close()
    assert disk.written == [9, 9, 4, 5]
