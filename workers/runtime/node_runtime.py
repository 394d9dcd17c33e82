"""A node's one runtime: resident base models, many jobs, one loop on its own thread."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

from workers.protocol.generation import Question
from workers.protocol.job_spec import BaseModelRef, JobSpec
from workers.protocol.probes import ProbeResult, ProbeTask
from workers.protocol.reports import Fault
from workers.runtime.admission import check_settings, prepare
from workers.runtime.answers import Answers
from workers.runtime.checkpoint_pipe import CheckpointPipe, snapshot_job
from workers.runtime.command_queue import CommandQueue
from workers.runtime.job_endings import JobEndings, tell
from workers.runtime.job_sink import JobSink
from workers.runtime.memory_plan import find_limit_gb
from workers.runtime.memory_shares import MemoryShares
from workers.runtime.probe import answer_probe
from workers.runtime.prompt_start import look_up_start
from workers.runtime.resident import ResidentBase
from workers.runtime.resident_bases import ResidentBases
from workers.runtime.running_job import RunningJob
from workers.runtime.thread_choice import use_best_threads
from workers.runtime.training_rounds import TrainingRounds
from workers.training.faults import SystemFault, is_device_lost
from workers.training.start_values import load_start_values
from workers.training.writing import Tell

log = logging.getLogger(__name__)


class NodeRuntime:
    """Trains every attached job, all jobs of a base model in one fused step.

    All methods may be called from any thread. Jobs come and go between steps and never
    stop each other.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:<n>``; several with commas between them are a group, whose
        devices have the blocks of each base in parts.
    cache_dir : Path
        Checkpoints and adapters are kept here, a folder per job.
    memory_limit_gb : float, optional
        Memory the node may use for training; by default what the device has.
    gang_devices : sequence of str
        Further devices that share the batches of soft prompts; each loads every base.
    reproducible : bool
        Take no kernel and no number of threads because it was measured to be the fastest:
        one CPU thread and PyTorch's own products, so that every process sums in the same
        order. Slower.
    """

    def __init__(
        self,
        *,
        device: str,
        cache_dir: Path,
        memory_limit_gb: float | None = None,
        gang_devices: Sequence[str] = (),
        reproducible: bool = False,
    ) -> None:
        self.devices = tuple(torch.device(name) for name in device.split(","))
        self.device = self.devices[0]
        self.cache_dir = cache_dir
        self.memory_limit_gb = memory_limit_gb or find_limit_gb(self.devices)
        self._residents = ResidentBases(
            devices=self.devices,
            limit_gb=self.memory_limit_gb,
            gang_devices=gang_devices,
            reproducible=reproducible,
            is_in_use=self._is_in_use,
        )
        self._running: dict[str, RunningJob] = {}
        self._attaching: dict[str, BaseModelRef] = {}
        #: Jobs that are done and whose time here is over, so that they end first; the loop's
        #: thread only.
        self._leaving: set[str] = set()
        self._memory = MemoryShares(
            residents=self._residents,
            running=self._running,
            measure_answers_gb=lambda: self._answers.cache_gb,
        )
        self._answers = Answers(self._memory.fit)
        self._names_lock = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="training", daemon=True)
        self._commands = CommandQueue(self._thread)
        self._closed = False
        #: The device or the loop failed for good; only another process can go on.
        self.device_lost = threading.Event()
        self._checkpoints = CheckpointPipe(post=self._commands.put, tell=tell)
        self._endings = JobEndings(remove=self._remove, on_device_lost=self.device_lost.set)
        self._rounds = TrainingRounds(
            running=self._running,
            memory=self._memory,
            checkpoints=self._checkpoints,
            endings=self._endings,
            is_preparing=self._is_preparing,
            pause=lambda job_id: self._detach(job_id, True),
            on_device_lost=self.device_lost.set,
        )
        self._thread.start()

    def attach(
        self,
        *,
        job: JobSpec,
        data_path: Path,
        validation_path: Path | None,
        checkpoint_paths: Sequence[Path] = (),
        start_path: Path | None = None,
        prompts_path: Path | None = None,
        sink: JobSink,
        pause_at: int | None = None,
    ) -> None:
        """Start a job, or continue it from a checkpoint; returns once it is in the loop.

        Reading data and loading a base model happen on the caller's thread; jobs that
        run meanwhile do not notice.

        Parameters
        ----------
        checkpoint_paths : sequence of Path
            Where to go on from: the first of them that is whole. None: from step 0.
        start_path : Path, optional
            Zip of the adapter that ``job.warm_start`` names.
        prompts_path : Path, optional
            Known prompts that a soft prompt which looks up its start is compared with.
        pause_at : int, optional
            Step after which the job leaves with a checkpoint of just that step.

        Raises
        ------
        UserFault
            The job's data or settings are wrong. Nothing was started.
        SystemFault
            This node cannot run it. Nothing was started.
        """
        began = time.monotonic()
        with self._names_lock:
            if self._closed:
                raise SystemFault("The node's runtime is closed.")
            if job.job_id in self._running or job.job_id in self._attaching:
                raise SystemFault(f"Job {job.job_id} is already on this node.")
            self._attaching[job.job_id] = job.base_model
        try:
            check_settings(job)
            running, values = prepare(
                job,
                resident=self.resident(job.base_model),
                data_path=data_path,
                validation_path=validation_path,
                checkpoint_paths=checkpoint_paths,
                start_path=start_path,
                directory=self.cache_dir / job.job_id,
                sink=sink,
            )
            if prompts_path is not None and job.lookup is not None and running.starts_anew:
                values = look_up_start(
                    running, values, job.lookup, prompts_path, call=self._commands.call
                )
            running.pause_at = pause_at
            running.attach_s = round(time.monotonic() - began, 4)
            self._commands.call(lambda: self._admit(running, values))
        finally:
            with self._names_lock:
                self._attaching.pop(job.job_id, None)

    def checkpoint(self, job_id: str) -> None:
        """Have a checkpoint written soon; it arrives at the job's sink."""
        self._commands.put(lambda: self._rounds.take_checkpoint(job_id))

    def detach(self, job_id: str, *, checkpoint: bool, may_end: bool = False) -> None:
        """Take a job off the node between two steps; an unknown job is no error.

        Parameters
        ----------
        checkpoint : bool
            True: its state is written, then the sink's ``checkpointed`` and ``paused``
            are called. False: the job is dropped and its sink hears nothing more.
        may_end : bool
            Leave a job that has done its last step to its last evaluation, samples and adapter,
            unless a newcomer needs its memory. A second call without it takes the job off.
        """
        self._commands.call(lambda: self._detach(job_id, checkpoint, may_end=may_end))

    def jobs(self) -> tuple[str, ...]:
        """The jobs on the node, in the order they came."""
        with self._names_lock:
            return tuple(self._running)

    def close(self) -> None:
        """Stop the loop after its present step; checkpoints being written are finished."""
        with self._names_lock:
            if self._closed:
                return
            self._closed = True
        self._commands.put(lambda: None)
        self._thread.join()
        self._checkpoints.close()
        self._commands.run_waiting()
        self._residents.close()

    def probe(
        self, probe: ProbeTask, paths: Mapping[str, Path], *, expires_at: float
    ) -> ProbeResult:
        """Measure a base and some adapters on a few rows, between the steps of the jobs here.

        Parameters
        ----------
        paths : mapping of str to Path
            Zips of the adapters by name.
        expires_at : float
            Unix seconds; what is not measured by then is left out.

        Raises
        ------
        UserFault, SystemFault
            As ``load_resident``.
        """
        return answer_probe(
            probe,
            resident=self.resident(probe.base_model),
            paths=paths,
            call=self._commands.call,
            is_over=lambda: time.time() >= expires_at,
        )

    def answer(self, question: Question, adapter: Path | None, tell: Tell) -> None:
        """Begin to write an answer, token by token between the steps of the jobs here.

        Parameters
        ----------
        adapter : Path, optional
            Zip of the question's adapter.
        tell : callable
            Gets what was written, on the loop's thread; the last of it has a ``finish``.

        Raises
        ------
        UserFault, SystemFault
            As ``load_resident``, or the prompt, the adapter or the schema cannot be used.
        """
        resident = self.resident(question.base_model)
        load = None
        if adapter is not None and question.adapter is not None:
            shapes = resident.model.list_shapes(question.adapter.spec)
            scale = question.adapter.scale
            load = cache(lambda: load_start_values(adapter, shapes=shapes, scale=scale))
            if not resident.adapters.holds(question.adapter):
                # here, and not between two steps of the jobs
                load()
        grammar = resident.grammars.build(question.schema) if question.schema else None
        self._commands.call(lambda: self._answers.begin(resident, question, load, tell, grammar))

    def end_answer(self, token: str) -> None:
        """Write no more of an answer."""
        self._commands.put(lambda: self._answers.end(token))

    def resident(self, ref: BaseModelRef) -> ResidentBase:
        """The base model, loaded if it is not there yet.

        Raises
        ------
        UserFault, SystemFault
            As ``load_resident``.
        """
        return self._residents.get(ref)

    # On the caller's thread.

    def _is_in_use(self, ref: BaseModelRef) -> bool:
        with self._names_lock:
            running = [r.resident.ref for r in self._running.values()]
            is_training = ref in running or ref in self._attaching.values()
        return is_training or self._answers.is_busy_with(ref)

    # On the loop's thread.

    def _loop(self) -> None:
        try:
            self._run_rounds()
        except Exception:
            # a node must not look alive whose loop is not
            log.exception("the training loop failed")
            self.device_lost.set()

    def _run_rounds(self) -> None:
        while True:
            busy = any(r.resident.trainer.jobs for r in self._running.values())
            self._commands.run_waiting(wait=not (busy or self._answers.is_busy))
            if self._closed:
                return
            began = time.monotonic()
            for resident in self._residents.list():
                if resident.trainer.jobs:
                    self._rounds.run_round(resident)
            self._endings.write_sample_token()
            trained_s = time.monotonic() - began if busy else 0.0
            if not self._answers.write(trained_s=trained_s):
                self.device_lost.set()

    def _is_preparing(self) -> bool:
        """Whether a job not in the loop yet is being read or loaded, which takes memory too."""
        with self._names_lock:
            return bool(self._attaching.keys() - self._running.keys())

    def _admit(self, running: RunningJob, values: dict[str, torch.Tensor]) -> None:
        if self._closed:
            raise SystemFault("The node's runtime is closed.")
        resident = running.resident
        self._make_room(running)
        self._memory.forget_peak()
        if resident.threads is None:
            resident.threads = use_best_threads(resident.model)
        resident.apply_threads()
        running.describe_room()
        try:
            resident.trainer.add(running.job, values)
        except BaseException:
            with contextlib.suppress(SystemFault):
                self._memory.fit(resident)
            raise
        with self._names_lock:
            self._running[running.job.job_id] = running
        tell(lambda: running.report(force=True))
        self._rounds.evaluate_or_go_on(running)

    def _detach(self, job_id: str, checkpoint: bool, *, may_end: bool = False) -> None:
        # a step that completes by this counts, and may be the job's last
        running = self._rounds.catch_up(job_id, lands=True)
        if running is None:
            return
        if may_end and running.job.done:
            self._leaving.add(job_id)
            return
        if not checkpoint:
            self._remove(running)
            return
        self._endings.guard(running, lambda: self._pause(running))

    def _pause(self, running: RunningJob) -> None:
        state = snapshot_job(running)
        tell(lambda: running.report(force=True))
        self._remove(running)

        def written(error: OSError | None) -> None:
            if error is None:
                tell(lambda: running.sink.paused(running.summary()))
                return
            reason = f"The checkpoint cannot be written on this node: {error}."
            tell(lambda: running.sink.failed(Fault.SYSTEM, reason, running.summary()))

        self._checkpoints.take(running, state, written)

    def _remove(self, running: RunningJob) -> None:
        job_id = running.job.job_id
        self._endings.forget(job_id)
        self._leaving.discard(job_id)
        try:
            running.resident.trainer.remove(job_id)
        except Exception as error:
            if not is_device_lost(error):
                raise
            # nothing can be taken off it, and nothing need be
            self.device_lost.set()
        with self._names_lock:
            del self._running[job_id]
        # a plan that measured more than it foresaw must not trip who stays
        with contextlib.suppress(SystemFault):
            self._memory.fit(running.resident)

    def _make_room(self, newcomer: RunningJob) -> None:
        """Size the packs for a newcomer; raises as ``MemoryShares.fit``.

        While it does not fit, others leave: adapters that no answer uses, and for what was sold
        also jobs that have only to end, and then answers. A check, which pauses, is an extra.
        """
        others = (self._pause_leaving, self._answers.give_way)
        is_sold = newcomer.pause_at is None
        for leave in (self._residents.drop_adapters, *(others if is_sold else ())):
            with contextlib.suppress(SystemFault):
                return self._memory.fit(newcomer.resident, newcomer=newcomer)
            leave()
        return self._memory.fit(newcomer.resident, newcomer=newcomer)

    def _pause_leaving(self) -> None:
        for job_id in sorted(self._leaving):
            self._detach(job_id, True)
