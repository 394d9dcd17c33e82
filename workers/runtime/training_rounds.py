"""A round of a node's loop: one fused step of a base's jobs, and what follows from it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from functools import partial

from workers.runtime.checkpoint_pipe import CheckpointPipe
from workers.runtime.job_endings import JobEndings, tell
from workers.runtime.memory_shares import MemoryShares
from workers.runtime.resident import ResidentBase
from workers.runtime.running_job import RunningJob
from workers.training.evaluation import Evaluation
from workers.training.faults import SystemFault, UserFault, is_device_lost
from workers.training.step_results import StepFailure, StepResult

log = logging.getLogger(__name__)


class TrainingRounds:
    """Runs rounds, on the loop's thread only.

    Parameters
    ----------
    running : mapping of str to RunningJob
        The jobs of the node as they come and go, by id.
    is_preparing : callable
        Whether a job not in the loop yet is being read or loaded, which takes memory too.
    pause : callable
        Takes a job off the node with a checkpoint.
    on_device_lost : callable
        Called when the device has failed for good.
    """

    def __init__(
        self,
        *,
        running: Mapping[str, RunningJob],
        memory: MemoryShares,
        checkpoints: CheckpointPipe,
        endings: JobEndings,
        is_preparing: Callable[[], bool],
        pause: Callable[[str], None],
        on_device_lost: Callable[[], None],
    ) -> None:
        self._running = running
        self._memory = memory
        self._checkpoints = checkpoints
        self._endings = endings
        self._is_preparing = is_preparing
        self._pause = pause
        self._on_device_lost = on_device_lost

    def run_round(self, resident: ResidentBase) -> None:
        """Step the jobs of a base together, then run one pack of an evaluation."""
        resident.apply_threads()
        try:
            results = resident.round(disturbed=self._is_preparing)
        # whatever a step raises, the node must live on: it cannot be one job's fault alone
        except Exception as error:
            results = list[StepResult | StepFailure](self._list_failures(resident, error))
        self._hand_out(resident, results)
        self._evaluate_pack(resident)

    def catch_up(self, job_id: str, *, lands: bool = False) -> RunningJob | None:
        """Tell jobs what came of packs that landed between two rounds; the job if it is left.

        Parameters
        ----------
        lands : bool
            Have those in flight get through first.
        """
        running = self._running.get(job_id)
        if running is None:
            return None
        trainer = running.resident.trainer
        if lands:
            trainer.land()
        while results := trainer.take_results():
            self._hand_out(running.resident, results)
        return self._running.get(job_id)

    def take_checkpoint(self, job_id: str) -> None:
        """Have a job's state written; an unknown job is no error."""
        running = self.catch_up(job_id)
        if running is not None:
            self._endings.guard(running, lambda: self._checkpoints.request(running))

    def _hand_out(self, resident: ResidentBase, results: list[StepResult | StepFailure]) -> None:
        stepped = [self._running[r.job_id] for r in results]
        self._memory.note_step(resident, stepped)
        for result in results:
            running = self._running[result.job_id]
            if isinstance(result, StepFailure):
                self._endings.fail(running, result.fault)
            else:
                self._endings.guard(running, partial(self._after_step, running, result))

    def _after_step(self, running: RunningJob, step: StepResult) -> None:
        running.stepped(step)
        tell(running.report)
        if running.pause_at is not None and running.job.progress.step >= running.pause_at:
            self._pause(running.job.job_id)
            return
        if not running.job.done:
            self._checkpoints.take_if_due(running)
        self.evaluate_or_go_on(running)

    def evaluate_or_go_on(self, running: RunningJob) -> None:
        """Start the evaluation that is due at the job's step; without one, end a job that is done.

        The job waits for its evaluation; its neighbours train between the evaluation's packs.
        """
        if running.is_evaluation_due:
            running.resident.trainer.start_evaluation(running.job.job_id)
        elif running.job.done:
            self._endings.guard(running, lambda: self._endings.finish(running))

    def _evaluate_pack(self, resident: ResidentBase) -> None:
        """Run one pack of an evaluation, if one is under way."""
        try:
            result = resident.trainer.evaluate_next()
        # only a lost device comes this far
        except Exception as error:
            for failure in self._list_failures(resident, error):
                self._endings.fail(self._running[failure.job_id], failure.fault)
            return
        if result is None:
            return
        running = self._running[result.job_id]
        if isinstance(result, StepFailure):
            self._endings.fail(running, result.fault)
        elif self._endings.guard(running, lambda: self._note_evaluation(running, result.found)):
            self.evaluate_or_go_on(running)

    def _list_failures(self, resident: ResidentBase, error: Exception) -> list[StepFailure]:
        """The end of all jobs of a base whose step failed for no reason of one of them."""
        log.error("a training step failed", exc_info=error)
        if is_device_lost(error):
            self._on_device_lost()
        return [
            StepFailure(job_id, SystemFault(f"The node's training step failed: {error}."))
            for job_id in list(resident.trainer.jobs)
        ]

    def _note_evaluation(self, running: RunningJob, found: Evaluation) -> None:
        if not math.isfinite(found.loss):
            raise UserFault(
                f"The validation loss is not a finite number at step {running.job.progress.step}. "
                "Lower the learning rate or check the validation rows."
            )
        running.evaluated(found)
        # The loss belongs to this step alone, so it is not left to a later report.
        tell(lambda: running.report(force=True))
