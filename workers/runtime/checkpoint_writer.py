"""Writes checkpoints on a thread of its own, keeps the one before, reports back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Queue

from workers.training.checkpoint import TrainingState, save_checkpoint

#: Checkpoints of a job kept on disk: the newest, and the one before it.
KEEP = 2

#: Called on the writer's thread: path and no error, or no path and what went wrong.
Written = Callable[[Path | None, OSError | None], None]


class CheckpointWriter:
    """One thread, first come first served."""

    def __init__(self) -> None:
        self._queue: Queue[tuple[TrainingState, Path, Written] | None] = Queue()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._thread.start()

    def write(self, checkpoint: TrainingState, directory: Path, written: Written) -> None:
        """Write later; the tensors must not change any more."""
        self._queue.put((checkpoint, directory, written))

    def close(self) -> None:
        """Write what is waiting, then stop."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            checkpoint, directory, written = item
            path = directory / format_checkpoint_name(checkpoint.progress.step)
            try:
                save_checkpoint(checkpoint, path)
            except OSError as error:
                written(None, error)
                continue
            for old in checkpoints(directory)[KEEP:]:
                with contextlib.suppress(OSError):
                    old.unlink()
            written(path, None)


def format_checkpoint_name(step: int) -> str:
    return f"step-{step:08d}.safetensors"


def checkpoints(directory: Path) -> list[Path]:
    """A job's checkpoints on disk, the one written last first.

    Not by step: what a run left that began afresh later, or the damaged end of an earlier
    one, may be further on and is older all the same.
    """
    found: list[tuple[int, str, Path]] = []
    for path in directory.glob("step-*.safetensors"):
        # the writer may be removing an old one just now
        with contextlib.suppress(FileNotFoundError):
            found.append((path.stat().st_mtime_ns, path.name, path))
    return [path for _, _, path in sorted(found, reverse=True)]
