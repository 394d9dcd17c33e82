"""A node's one runtime: resident base models, many jobs, one loop on its own thread."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import torch

from workers.protocol.generation import Question
from workers.protocol.job_spec import AdapterKind, BaseModelRef, JobSpec, PromptLookup
from workers.protocol.pass_bytes import PACK_TOKENS
from workers.protocol.probes import ProbeResult, ProbeSpec
from workers.protocol.reports import Fault
from workers.runtime.admission import check_settings, prepare
from workers.runtime.answers import Answers
from workers.runtime.artifacts import write_artifacts
from workers.runtime.checkpoint_pipe import CheckpointPipe, snapshot_job
from workers.runtime.gang_processes import ProcessGang
from workers.runtime.job_sink import JobSink
from workers.runtime.memory_plan import find_device_limit_gb, fit
from workers.runtime.probe import answer_probe
from workers.runtime.resident import ResidentBase, load_resident
from workers.runtime.running_job import RunningJob
from workers.runtime.thread_choice import use_best_threads
from workers.training.evaluation import Evaluation
from workers.training.faults import SystemFault, TrainingFault, UserFault, is_device_lost
from workers.training.fused_trainer import StepFailure, StepResult
from workers.training.packed_model import PROMPT
from workers.training.prompt_lookup import LookupRun, count_copied_tokens, read_candidates
from workers.training.samples import SampleRun
from workers.training.start_values import load_start_values
from workers.training.writing import Tell

log = logging.getLogger(__name__)
T = TypeVar("T")


class NodeRuntime:
    """Trains every attached job, all jobs of a base model in one fused step.

    All methods may be called from any thread. Jobs come and go between steps and never
    stop each other.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:<n>``.
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
        self.device = torch.device(device)
        self.gang_devices = tuple(gang_devices)
        self.reproducible = reproducible
        self.cache_dir = cache_dir
        self.memory_limit_gb = memory_limit_gb or find_device_limit_gb(self.device)
        self._residents: dict[BaseModelRef, ResidentBase] = {}
        self._residents_lock = threading.Lock()
        self._running: dict[str, RunningJob] = {}
        self._attaching: dict[str, BaseModelRef] = {}
        #: Jobs that are done but for their samples; the loop's thread only.
        self._sampling: dict[str, SampleRun] = {}
        #: Those of them whose time here is over, and that end first; the loop's thread only.
        self._leaving: set[str] = set()
        self._answers = Answers(self._fit)
        self._names_lock = threading.Lock()
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._closed = False
        #: The device failed for good; only another process can use it again.
        self.device_lost = threading.Event()
        self._checkpoints = CheckpointPipe(post=self._commands.put, tell=self._tell)
        self._thread = threading.Thread(target=self._loop, name="training", daemon=True)
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
                values = self._look_up(running, values, job.lookup, prompts_path)
            running.attach_s = round(time.monotonic() - began, 4)
            self._call(lambda: self._admit(running, values))
        finally:
            with self._names_lock:
                self._attaching.pop(job.job_id, None)

    def checkpoint(self, job_id: str) -> None:
        """Have a checkpoint written soon; it arrives at the job's sink."""
        self._commands.put(lambda: self._want_checkpoint(job_id))

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
        self._call(lambda: self._detach(job_id, checkpoint, may_end=may_end))

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
        self._drain()
        for resident in self._residents.values():
            _close_gang(resident)

    def probe(self, probe: ProbeSpec, paths: Mapping[str, Path]) -> ProbeResult:
        """Measure a base and some adapters on a few rows, between the steps of the jobs here.

        Parameters
        ----------
        paths : mapping of str to Path
            Zips of the adapters by name.

        Raises
        ------
        UserFault, SystemFault
            As ``load_resident``.
        """
        return answer_probe(
            probe,
            resident=self.resident(probe.base_model),
            paths=paths,
            call=self._call,
            is_over=lambda: time.time() >= probe.expires_at,
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
            As ``load_resident``, or the prompt or the adapter cannot be used.
        """
        resident = self.resident(question.base_model)
        values = None
        if adapter is not None and question.adapter is not None:
            fresh = resident.model.draw_initial_values(
                question.adapter.spec, seed=0, tokenizer=resident.tokenizer
            )
            values = load_start_values(adapter, fresh=fresh, scale=question.adapter.scale)
        self._call(lambda: self._answers.begin(resident, question, values, tell))

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
        with self._residents_lock:
            if ref not in self._residents:
                self._residents[ref] = self._load(ref)
            return self._residents[ref]

    # On the caller's thread.

    def _load(self, ref: BaseModelRef) -> ResidentBase:
        resident = load_resident(
            ref,
            device=self.device,
            limit_gb=self.memory_limit_gb,
            reproducible=self.reproducible,
        )
        # bases without jobs make room for one that is asked for
        used = resident.plan.base_gb
        for other in list(self._residents):
            used += self._residents[other].plan.base_gb
            if used > self.memory_limit_gb and not self._in_use(other):
                unused = self._residents.pop(other)
                used -= unused.plan.base_gb
                _close_gang(unused)
        if self.gang_devices and resident.model.is_packed and not resident.model.shape.encoder:
            resident.trainer.gang = ProcessGang(
                ref,
                devices=self.gang_devices,
                limit_gb=self.memory_limit_gb,
                pad_to=resident.trainer.pad_to,
                reproducible=self.reproducible,
            )
        return resident

    def _look_up(
        self,
        running: RunningJob,
        values: dict[str, torch.Tensor],
        lookup: PromptLookup,
        prompts_path: Path,
    ) -> dict[str, torch.Tensor]:
        """The values a soft prompt starts from; others train between the lookup's packs."""
        run = LookupRun(
            running.job,
            candidates=read_candidates(prompts_path),
            own=values[PROMPT],
            token_budget=PACK_TOKENS[self.device.type],
            budget_s=lookup.budget_s,
        )
        model = running.resident.model
        figures = None
        while figures is None:
            figures = self._call(lambda: run.score_pack(model))
        running.lookup = figures
        running.log.append(
            f"Lookup: {figures.candidates} prompts compared in {figures.seconds:.2f} s; "
            + (
                f"starts at a loss of {figures.score:.3f} instead of {figures.own_score:.3f}."
                if figures.prompt_id
                else "the job's own initial prompt is best."
            )
        )
        return values | {PROMPT: run.get_prompt(figures)}

    def _in_use(self, ref: BaseModelRef) -> bool:
        with self._names_lock:
            running = [r.resident.ref for r in self._running.values()]
            is_training = ref in running or ref in self._attaching.values()
        return is_training or self._answers.is_busy_with(ref)

    def _call(self, action: Callable[[], T]) -> T:
        """Run between two steps on the loop's thread and wait for it."""
        if threading.current_thread() is self._thread:
            return action()
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(action())
            except BaseException as error:
                future.set_exception(error)

        self._commands.put(run)
        if not self._thread.is_alive():
            self._drain()
        return future.result()

    # On the loop's thread.

    def _loop(self) -> None:
        while True:
            busy = any(r.resident.trainer.jobs for r in self._running.values())
            self._drain(wait=not (busy or self._answers.is_busy))
            if self._closed:
                return
            began = time.monotonic()
            for resident in list(self._residents.values()):
                if resident.trainer.jobs:
                    self._round(resident)
                    self._evaluate_pack(resident)
            self._write_sample_tokens()
            trained_s = time.monotonic() - began if busy else 0.0
            if not self._answers.write(trained_s=trained_s):
                self.device_lost.set()

    def _drain(self, *, wait: bool = False) -> None:
        try:
            command = self._commands.get(block=wait)
            while True:
                command()
                command = self._commands.get_nowait()
        except Empty:
            return

    def _round(self, resident: ResidentBase) -> None:
        resident.apply_threads()
        try:
            results = resident.round(disturbed=self._preparing)
        # whatever a step raises, the node must live on: it cannot be one job's fault alone
        except Exception as error:
            results = list[StepResult | StepFailure](self._fail_all(resident, error))
        stepped = [self._running[r.job_id] for r in results]
        self._note_memory(resident, stepped)
        for result in results:
            running = self._running[result.job_id]
            if isinstance(result, StepFailure):
                self._fail(running, result.fault)
            else:
                self._after_step(running, result)

    def _preparing(self) -> bool:
        """Whether a job not in the loop yet is being read or loaded, which takes memory too."""
        with self._names_lock:
            return bool(self._attaching.keys() - self._running.keys())

    def _admit(self, running: RunningJob, values: dict[str, torch.Tensor]) -> None:
        if self._closed:
            raise SystemFault("The node's runtime is closed.")
        resident = running.resident
        self._make_room(running)
        if self.device.type == "cuda":
            # a job's peak is that of its own time here
            torch.cuda.reset_peak_memory_stats(self.device)
        if resident.threads is None:
            resident.threads = use_best_threads(resident.model)
        resident.apply_threads()
        running.log.append(
            f"Memory: {resident.plan.base_gb:.3f} GB for the base, about "
            f"{resident.compute_job_gb(running.job):.3f} GB for this job; "
            f"{resident.describe_pack()}."
        )
        if not resident.model.is_packed:
            running.log.append(
                f"Bases of the type {resident.model.shape.model_type} run by their own code: "
                "jobs take turns and share no pass."
            )
        resident.trainer.add(running.job, values)
        with self._names_lock:
            self._running[running.job.job_id] = running
        self._tell(lambda: running.report(force=True))
        self._evaluate_or_go_on(running)

    def _after_step(self, running: RunningJob, step: StepResult) -> None:
        running.stepped(step)
        self._tell(running.report)
        if not running.job.done:
            self._checkpoints.take_if_due(running)
        self._evaluate_or_go_on(running)

    def _evaluate_or_go_on(self, running: RunningJob) -> None:
        """Start the evaluation that is due at the job's step; without one, end a job that is done.

        The job waits for its evaluation; its neighbours train between the evaluation's packs.
        """
        if running.is_evaluation_due:
            running.resident.trainer.start_evaluation(running.job.job_id)
        elif running.job.done:
            self._guarded(running, lambda: self._finish(running))

    def _evaluate_pack(self, resident: ResidentBase) -> None:
        """Run one pack of an evaluation, if one is under way."""
        try:
            result = resident.trainer.evaluate_next()
        # only a lost device comes this far
        except Exception as error:
            for failure in self._fail_all(resident, error):
                self._fail(self._running[failure.job_id], failure.fault)
            return
        if result is None:
            return
        running = self._running[result.job_id]
        if isinstance(result, StepFailure):
            self._fail(running, result.fault)
        elif self._guarded(running, lambda: self._note_evaluation(running, result.found)):
            self._evaluate_or_go_on(running)

    def _fail_all(self, resident: ResidentBase, error: Exception) -> list[StepFailure]:
        """The end of all jobs of a base whose step failed for no reason of one of them."""
        log.error("a training step failed", exc_info=error)
        if is_device_lost(error):
            self.device_lost.set()
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
        self._tell(lambda: running.report(force=True))

    def _finish(self, running: RunningJob) -> None:
        """End a job that is done, once its samples are written."""
        resident = running.resident
        if running.samples is None:
            running.keep_best()
            self._sampling[running.job.job_id] = SampleRun(
                running.job,
                model=resident.model,
                tokenizer=resident.tokenizer,
                token_budget=resident.trainer.token_budget,
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
        self._tell(lambda: running.report(force=True))
        summary = running.summary()
        self._remove(running)
        self._tell(lambda: running.sink.finished(directory, summary))

    def _write_sample_tokens(self) -> None:
        """Write the next token of one job's samples, if there are any under way."""
        if not self._sampling:
            return
        job_id, run = next(iter(self._sampling.items()))
        del self._sampling[job_id]
        running = self._running[job_id]
        running.resident.apply_threads()
        try:
            found = run.write_token(running.resident.model, pad_to=running.resident.trainer.pad_to)
        # They are an extra: a job ends well without them.
        except Exception as error:
            log.exception("the samples of %s failed", job_id)
            if is_device_lost(error):
                self.device_lost.set()
            found = ()
        if found is None:
            # Several jobs take turns.
            self._sampling[job_id] = run
            return
        running.samples = found
        self._guarded(running, lambda: self._finish(running))

    def _fail(self, running: RunningJob, fault: TrainingFault) -> None:
        cause = Fault.USER if isinstance(fault, UserFault) else Fault.SYSTEM
        running.log.append(str(fault))
        self._tell(lambda: running.report(force=True))
        self._remove(running)
        summary = running.summary()
        self._tell(lambda: running.sink.failed(cause, str(fault), summary))

    def _detach(self, job_id: str, checkpoint: bool, *, may_end: bool = False) -> None:
        running = self._running.get(job_id)
        if running is None:
            return
        if may_end and running.job.done:
            self._leaving.add(job_id)
            return
        if not checkpoint:
            self._remove(running)
            return
        state = snapshot_job(running)
        self._tell(lambda: running.report(force=True))
        self._remove(running)

        def written(error: OSError | None) -> None:
            if error is None:
                self._tell(lambda: running.sink.paused(running.summary()))
                return
            reason = f"The checkpoint cannot be written on this node: {error}."
            self._tell(lambda: running.sink.failed(Fault.SYSTEM, reason, running.summary()))

        self._checkpoints.take(running, state, written)

    def _want_checkpoint(self, job_id: str) -> None:
        running = self._running.get(job_id)
        if running is not None:
            self._checkpoints.request(running)

    def _remove(self, running: RunningJob) -> None:
        job_id = running.job.job_id
        self._sampling.pop(job_id, None)
        self._leaving.discard(job_id)
        running.resident.trainer.remove(job_id)
        with self._names_lock:
            del self._running[job_id]
        # a plan that measured more than it foresaw must not trip who stays
        with contextlib.suppress(SystemFault):
            self._fit(running.resident)

    def _make_room(self, newcomer: RunningJob) -> None:
        """Size the packs for a newcomer; where it does not fit, jobs that may end here leave.

        Raises
        ------
        SystemFault
            As ``_fit``.
        """
        try:
            self._fit(newcomer.resident, newcomer=newcomer)
        except SystemFault:
            if not self._leaving:
                raise
            for job_id in sorted(self._leaving):
                self._detach(job_id, True)
            self._fit(newcomer.resident, newcomer=newcomer)

    def _fit(self, resident: ResidentBase, newcomer: RunningJob | None = None) -> None:
        """Size the packs so that all of a base's jobs fit.

        Raises
        ------
        SystemFault
            When the newcomer does not fit beside the others; nothing is changed then.
        """
        jobs = [r for r in self._running.values() if r.resident is resident]
        if newcomer is not None:
            jobs.append(newcomer)
        if not jobs:
            return
        others_gb = sum(
            other.plan.base_gb for other in self._residents.values() if other is not resident
        )
        others_gb += sum(
            r.resident.compute_job_gb(r.job)
            for r in self._running.values()
            if r.resident is not resident
        )
        others_gb += self._answers.cache_gb
        try_fit = partial(
            fit,
            resident.plan,
            needs=[r.job.memory_need for r in jobs],
            others_gb=others_gb,
            longest_tokens=max(r.longest_tokens for r in jobs),
        )
        try:
            # recorded steps keep the memory of a pack of their own
            found = try_fit(passes=1 if resident.trainer.fixed is None else 2)
        except SystemFault:
            found = try_fit()
            if resident.trainer.fixed is not None:
                log.warning("recorded steps are given up for their memory")
                resident.trainer.fixed = None
        resident.trainer.token_budget = found.token_budget
        resident.model.checkpoint_layers = found.recompute

    def _note_memory(self, resident: ResidentBase, jobs: list[RunningJob]) -> None:
        """Feed what was measured back into the plan, and into the jobs' reports."""
        trainer = resident.trainer
        if trainer.saved_per_token is not None:
            resident.note_pack(gb=trainer.saved_per_token * trainer.last_pack / 1e9)
            trainer.saved_per_token = None
        for running in jobs:
            used = self._memory_gb(resident)
            running.peak_memory_gb = max(used, running.peak_memory_gb or 0.0)

    def _memory_gb(self, resident: ResidentBase) -> float:
        """The engine's memory: the device's own count, or on a CPU what the parts add up to."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 1e9
        jobs = sum(r.resident.compute_job_gb(r.job) for r in self._running.values())
        bases = sum(other.plan.base_gb for other in self._residents.values())
        return bases + jobs + resident.activations_gb

    def _guarded(self, running: RunningJob, action: Callable[[], Any]) -> bool:
        """Whether the action went well; if not, the job alone has failed."""
        try:
            action()
        except TrainingFault as fault:
            self._fail(running, fault)
            return False
        # a bug or an exhausted device in one job's evaluation or export is that job's end only
        except Exception as error:
            log.exception("job %s failed outside of a step", running.job.job_id)
            self._fail(running, SystemFault(f"The node failed on this job: {error}."))
            return False
        return True

    def _tell(self, call: Callable[[], None]) -> None:
        try:
            call()
        # a sink that raises must not take the node's other jobs with it
        except Exception:
            log.exception("a job's sink raised")


def _close_gang(resident: ResidentBase) -> None:
    if resident.trainer.gang is not None:
        resident.trainer.gang.close()
