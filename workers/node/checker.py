"""Checks: train a few steps of another node's job again, and tell their losses or whether they end
in a fault of the input; or measure its result on the held-out rows."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from workers.node.blob_cache import BlobCache
from workers.node.market_client import MarketClient
from workers.node.preparer import Runtime
from workers.protocol.checks import CheckResult, CheckTask, StepLoss
from workers.protocol.errands import ErrandSpec
from workers.protocol.fault_checks import FaultCheckResult, FaultCheckTask
from workers.protocol.reports import Fault, ProgressEvent
from workers.protocol.weight_sketch import lay_out_weights, sketch_weights
from workers.runtime.job_sink import JobSink, JobSummary
from workers.runtime.running_job import metrics_from_table
from workers.training.checkpoint import CorruptCheckpointError, load_checkpoint
from workers.training.faults import SystemFault, UserFault

#: Seconds that the runtime may take to store the last checkpoint.
_ENDS_WITHIN_S = 10.0


class Checker:
    """An ``ErrandHandler``."""

    task_type: type[Any] = CheckTask

    def __init__(
        self, *, runtime: Runtime, cache: BlobCache, client: MarketClient, work: Path
    ) -> None:
        self._runtime = runtime
        self._cache = cache
        self._client = client
        self._work = work

    def do(self, task: CheckTask, errand: ErrandSpec, *, is_over: Callable[[], bool]) -> Any:
        """Give the losses, and a sketch of the weights or their score where it is asked for."""
        steps = _StepsSink(task.until_step, scores_start=task.scores_start)
        with self._attached(task, sink=steps):
            self._wait(steps.reached, errand)
            if task.scores_start:
                self._runtime.detach(task.job.job_id, checkpoint=False)
                return CheckResult(score=steps.score)
            # Its losses, step by step, are in its checkpoint.
            self._runtime.detach(task.job.job_id, checkpoint=True)
            steps.ended.wait(_ENDS_WITHIN_S)
            begin = task.resume_from.step if task.resume_from else 0
            losses, sketch = steps.read_losses(after=begin), steps.sketch(seed=task.sketch_seed)
            return CheckResult(losses, sketch=sketch)

    @contextlib.contextmanager
    def _attached(self, task: CheckTask | FaultCheckTask, *, sink: JobSink) -> Iterator[None]:
        """Train a task's job up to its last step; nothing of it stays on the disk."""
        job = task.job
        with contextlib.ExitStack() as stack:
            data = stack.enter_context(self._cache.opened(job.dataset))
            validation = prompts = start = None
            if job.validation_dataset is not None:
                validation = stack.enter_context(self._cache.opened(job.validation_dataset))
            checkpoints: list[Path] = []
            if task.resume_from is not None:
                checkpoints = [stack.enter_context(self._cache.opened(task.resume_from.blob))]
            elif job.lookup is not None:
                prompts = stack.enter_context(self._cache.opened(job.lookup.prompts))
            if job.warm_start is not None:
                start = stack.enter_context(self._cache.opened(job.warm_start.adapter))
            stack.callback(shutil.rmtree, self._work / job.job_id, ignore_errors=True)
            self._runtime.attach(
                job=job,
                data_path=data,
                validation_path=validation,
                checkpoint_paths=checkpoints,
                start_path=start,
                prompts_path=prompts,
                sink=sink,
                # Weights are compared after exactly the same steps.
                pause_at=max(1, task.until_step),
            )
            yield

    def _wait(self, event: threading.Event, errand: ErrandSpec) -> bool:
        """Wait for as long as the errand may take; whether it came."""
        return event.wait(max(0.0, errand.expires_at - self._client.market_time()))


class FaultChecker(Checker):
    """An ``ErrandHandler``: whether steps end in a fault of their job's input."""

    task_type = FaultCheckTask

    def do(self, task: FaultCheckTask, errand: ErrandSpec, *, is_over: Callable[[], bool]) -> Any:
        """Give the fault, if there is one.

        Raises
        ------
        SystemFault
            This node could not train the steps.
        """
        end = _EndSink()
        try:
            with self._attached(task, sink=end):
                is_ended = self._wait(end.ended, errand)
                self._runtime.detach(task.job.job_id, checkpoint=False)
        except UserFault as fault:
            return FaultCheckResult(str(fault), task.resume_from.step if task.resume_from else 0)
        if not is_ended or end.fault is Fault.SYSTEM:
            raise SystemFault(end.reason or "The steps took too long.")
        return FaultCheckResult(end.reason, end.step)


class _EndSink:
    """Notes how a job ends."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.fault: Fault | None = None
        #: Empty: it failed at nothing.
        self.reason = ""
        self.step: int | None = None

    def progress(self, event: ProgressEvent) -> None: ...

    def checkpointed(self, path: Path, step: int) -> None: ...

    def paused(self, summary: JobSummary) -> None:
        self.ended.set()

    def finished(self, adapter_dir: Path, summary: JobSummary) -> None:
        self.ended.set()

    def failed(self, fault: Fault, reason: str, summary: JobSummary) -> None:
        self.fault, self.reason, self.step = fault, reason, summary.step
        self.ended.set()


class _StepsSink:
    """Notes when a job is at its last step to compare, and where its losses are."""

    def __init__(self, until_step: int, *, scores_start: bool) -> None:
        self._until_step = until_step
        self._scores_start = scores_start
        #: Loss on the held-out rows before the first step.
        self.score: float | None = None
        self._path: Path | None = None
        self.reached = threading.Event()
        self.ended = threading.Event()

    def read_losses(self, *, after: int) -> tuple[StepLoss, ...]:
        if self._path is None:
            return ()
        try:
            rows = load_checkpoint(self._path).metrics
        except CorruptCheckpointError:
            return ()
        return tuple(
            StepLoss(row.step, row.train_loss)
            for row in metrics_from_table(rows)
            if row.train_loss is not None and after < row.step <= self._until_step
        )

    def sketch(self, *, seed: str) -> tuple[float, ...]:
        """Give the weights after the last step; none if training did not come to just there."""
        if self._path is None or not seed:
            return ()
        try:
            state = load_checkpoint(self._path)
        except CorruptCheckpointError:
            return ()
        if state.progress.step != self._until_step:
            return ()
        weights = {name: values.numpy() for name, values in state.params.items()}
        shapes = {name: values.shape for name, values in weights.items()}
        return tuple(sketch_weights(lay_out_weights(weights.items(), shapes=shapes), seed=seed))

    def progress(self, event: ProgressEvent) -> None:
        """The runtime pauses the job by itself; its checkpoint follows."""
        if self._scores_start and event.step == 0 and event.valid_loss is not None:
            self.score = event.valid_loss
            self.reached.set()

    def checkpointed(self, path: Path, step: int) -> None:
        self._path = path

    def paused(self, summary: JobSummary) -> None:
        self._end()

    def finished(self, adapter_dir: Path, summary: JobSummary) -> None:
        self._end()

    def failed(self, fault: Fault, reason: str, summary: JobSummary) -> None:
        self._end()

    def _end(self) -> None:
        self.reached.set()
        self.ended.set()
