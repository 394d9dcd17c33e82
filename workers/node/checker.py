"""Answering spot checks: train a few steps of another node's job again, and tell their losses; or
measure its result on the held-out rows.

A check is an extra beside the slices: each fault of one is reported or logged, and the node
goes on.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from workers.node.blob_cache import BlobCache, DiskFullError
from workers.node.market_client import MarketClient, MarketError, Patience, ShuttingDownError
from workers.node.preparer import Runtime
from workers.protocol.checks import PATH_CHECK_RESULT, CheckResult, CheckSpec, StepLoss
from workers.protocol.reports import Fault, ProgressEvent
from workers.protocol.weight_sketch import sketch_weights
from workers.protocol.wire import ProtocolError, from_json
from workers.runtime.job_sink import JobSummary
from workers.runtime.running_job import metrics_from_table
from workers.training.checkpoint import CorruptCheckpointError, load_checkpoint
from workers.training.faults import TrainingFault

log = logging.getLogger(__name__)

_KNOWN_MAX = 1000
_PATIENCE = Patience(total_s=10.0)


class Checker:
    """``take`` is called on the node's thread; the rest happens on one of its own."""

    def __init__(
        self, *, runtime: Runtime, cache: BlobCache, client: MarketClient, work: Path
    ) -> None:
        self._runtime = runtime
        self._cache = cache
        self._client = client
        self._work = work
        self._known: dict[str, None] = {}
        self._closing = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="check")

    def take(self, value: Any) -> None:
        """Answer a check that is new and not over; one that is not understood is left out."""
        try:
            check = from_json(CheckSpec, value, ignores_unknown=True)
        except ProtocolError as error:
            log.warning("a check is not understood: %s", error)
            return
        if check.token in self._known or self._client.market_time() >= check.expires_at:
            return
        while len(self._known) >= _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[check.token] = None
        self._pool.submit(self._answer, check)

    def close(self) -> None:
        self._closing.set()
        self._pool.shutdown(cancel_futures=True)

    def _answer(self, check: CheckSpec) -> None:
        try:
            result = self._train_again(check)
        except ShuttingDownError:
            return
        except (TrainingFault, MarketError, DiskFullError, OSError) as error:
            result = CheckResult(check.token, reason=str(error)[:300])
        # Nothing of a check may end the node.
        except Exception as error:
            log.exception("a check failed")
            result = CheckResult(check.token, reason=str(error)[:300])
        with contextlib.suppress(MarketError):
            self._client.send(PATH_CHECK_RESULT, result, patience=_PATIENCE)

    def _train_again(self, check: CheckSpec) -> CheckResult:
        """Give the losses, and a sketch of the weights or their score where it is asked for."""
        job = check.job
        steps = _StepsSink(check.until_step, scores_start=check.scores_start)
        with contextlib.ExitStack() as stack:
            data = stack.enter_context(self._cache.opened(job.dataset))
            validation = None
            if job.validation_dataset is not None:
                validation = stack.enter_context(self._cache.opened(job.validation_dataset))
            checkpoints: list[Path] = []
            if check.resume_from is not None:
                checkpoints = [stack.enter_context(self._cache.opened(check.resume_from.blob))]
            start = None
            if job.warm_start is not None:
                start = stack.enter_context(self._cache.opened(job.warm_start.adapter))
            stack.callback(shutil.rmtree, self._work / job.job_id, ignore_errors=True)
            self._runtime.attach(
                job=job,
                data_path=data,
                validation_path=validation,
                checkpoint_paths=checkpoints,
                start_path=start,
                prompts_path=None,
                sink=steps,
                # Weights are compared after exactly the same steps.
                pause_at=max(1, check.until_step),
            )
            left_s = check.expires_at - self._client.market_time()
            steps.reached.wait(max(0.0, left_s))
            if check.scores_start:
                self._runtime.detach(job.job_id, checkpoint=False)
                return CheckResult(check.token, score=steps.score)
            # Its losses, step by step, are in its checkpoint.
            self._runtime.detach(job.job_id, checkpoint=True)
            steps.ended.wait(_PATIENCE.total_s)
            begin = check.resume_from.step if check.resume_from else 0
            losses, sketch = steps.read_losses(after=begin), steps.sketch(seed=check.sketch_seed)
            return CheckResult(check.token, losses, sketch=sketch)


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
        weights = ((name, values.numpy()) for name, values in state.params.items())
        return tuple(sketch_weights(weights, seed=seed))

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
