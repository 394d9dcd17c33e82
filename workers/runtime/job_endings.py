"""How jobs end on a node: after their samples and their adapter, or with a fault."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from workers.protocol.job_spec import AdapterKind
from workers.protocol.reports import Fault
from workers.runtime.artifacts import write_artifacts
from workers.runtime.running_job import RunningJob
from workers.training.faults import SystemFault, TrainingFault, UserFault, is_device_lost
from workers.training.prompt_lookup import count_copied_tokens
from workers.training.samples import SampleRun

log = logging.getLogger(__name__)


class JobEndings:
    """Ends jobs, on the loop's thread only.

    Parameters
    ----------
    remove : callable
        Takes a job off the node.
    on_device_lost : callable
        Called when the device has failed for good.
    """

    def __init__(
        self, *, remove: Callable[[RunningJob], None], on_device_lost: Callable[[], None]
    ) -> None:
        self._remove = remove
        self._on_device_lost = on_device_lost
        #: Jobs that are done but for their samples.
        self._sampling: dict[str, tuple[RunningJob, SampleRun]] = {}

    def finish(self, running: RunningJob) -> None:
        """End a job that is done, once its samples are written."""
        resident = running.resident
        if running.samples is None:
            running.keep_best()
            self._sampling[running.job.job_id] = (
                running,
                SampleRun(
                    running.job,
                    model=resident.model,
                    tokenizer=resident.tokenizer,
                    token_budget=resident.trainer.token_budget,
                ),
            )
            return
        if running.job.spec.adapter.kind is AdapterKind.SOFT_PROMPT:
            running.copied_tokens = count_copied_tokens(
                resident.model, running.job, resident.tokenizer
            )
        try:
            directory = write_artifacts(running)
        except OSError as error:
            raise SystemFault(f"The adapter cannot be written on this node: {error}.") from error
        tell(lambda: running.report(force=True))
        summary = running.summary()
        self._remove(running)
        tell(lambda: running.sink.finished(directory, summary))

    def write_sample_token(self) -> None:
        """Write the next token of one job's samples, if there are any under way."""
        if not self._sampling:
            return
        job_id, (running, run) = next(iter(self._sampling.items()))
        del self._sampling[job_id]
        running.resident.apply_threads()
        try:
            found = run.write_token(running.resident.model, pad_to=running.resident.trainer.pad_to)
        # They are an extra: a job ends well without them.
        except Exception as error:
            log.exception("the samples of %s failed", job_id)
            if is_device_lost(error):
                self._on_device_lost()
            found = ()
        if found is None:
            # Several jobs take turns.
            self._sampling[job_id] = (running, run)
            return
        running.samples = found
        self.guard(running, lambda: self.finish(running))

    def forget(self, job_id: str) -> None:
        """Write no more samples of a job that leaves the node."""
        self._sampling.pop(job_id, None)

    def fail(self, running: RunningJob, fault: TrainingFault) -> None:
        """End a job with a fault."""
        cause = Fault.USER if isinstance(fault, UserFault) else Fault.SYSTEM
        running.log.append(str(fault))
        tell(lambda: running.report(force=True))
        self._remove(running)
        summary = running.summary()
        tell(lambda: running.sink.failed(cause, str(fault), summary))

    def guard(self, running: RunningJob, action: Callable[[], Any]) -> bool:
        """Whether an action went well; if not, the job alone has failed."""
        try:
            action()
        except TrainingFault as fault:
            self.fail(running, fault)
            return False
        # a bug or an exhausted device in one job's evaluation or export is that job's end only
        except Exception as error:
            log.exception("job %s failed outside of a step", running.job.job_id)
            if is_device_lost(error):
                self._on_device_lost()
            self.fail(running, SystemFault(f"The node failed on this job: {error}."))
            return False
        return True


def tell(call: Callable[[], None]) -> None:
    """Call a job's sink; one that raises does not take the node's other jobs with it."""
    try:
        call()
    except Exception:
        log.exception("a job's sink raised")
