"""A job's sink on a node: what the runtime reports of a slice, handed to the node's thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from workers.node.slice_run import SliceRun
from workers.protocol.reports import Fault, ProgressEvent, SliceEnd
from workers.runtime.job_sink import JobSummary


class SliceSink:
    """Called on the training loop's thread; everything it was given is called by ``put``.

    Parameters
    ----------
    put : callable
        Has something run on the node's thread.
    checkpointed : callable
        Takes the slice, a checkpoint's path and its step.
    ended : callable
        Takes the slice, how it ended, the summary, and ``fault``, ``reason`` or ``adapter_dir``.
    """

    def __init__(
        self,
        run: SliceRun,
        *,
        put: Callable[[Callable[[], None]], None],
        checkpointed: Callable[[SliceRun, Path, int], None],
        ended: Callable[..., None],
    ) -> None:
        self._run = run
        self._put = put
        self._checkpointed = checkpointed
        self._ended = ended

    def progress(self, event: ProgressEvent) -> None:
        self._put(partial(self._run.progress.add, event))

    def checkpointed(self, path: Path, step: int) -> None:
        self._put(partial(self._checkpointed, self._run, path, step))

    def paused(self, summary: JobSummary) -> None:
        self._put(partial(self._ended, self._run, SliceEnd.PAUSED, summary))

    def finished(self, adapter_dir: Path, summary: JobSummary) -> None:
        ended = partial(self._ended, self._run, SliceEnd.FINISHED, summary)
        self._put(partial(ended, adapter_dir=adapter_dir))

    def failed(self, fault: Fault, reason: str, summary: JobSummary) -> None:
        ended = partial(self._ended, self._run, SliceEnd.FAILED, summary)
        self._put(partial(ended, fault=fault, reason=reason))
