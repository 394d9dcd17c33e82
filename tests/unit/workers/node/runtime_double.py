"""A runtime that trains nothing but keeps the promises of ``NodeRuntime`` to the letter."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workers.protocol.job_spec import JobSpec
from workers.protocol.probes import ProbeLoss, ProbeResult, ProbeTask
from workers.protocol.reports import Fault, ProgressEvent
from workers.runtime.job_sink import JobSink, JobSummary
from workers.training.faults import SystemFault, TrainingFault

TOTAL_STEPS = 100
ADAPTER_WEIGHTS = b"weights"


@dataclass
class Attached:
    spec: JobSpec
    sink: JobSink
    data: bytes
    checkpoint: bytes | None
    step: int = 0

    def summary(self) -> JobSummary:
        return JobSummary(
            job_id=self.spec.job_id,
            step=self.step,
            total_steps=TOTAL_STEPS,
            samples_done=self.step * 8,
            first_train_loss=3.0,
            last_train_loss=2.0,
            valid_loss_before=3.1,
            valid_loss_after=2.1,
            trained_tokens=640,
        )


class RuntimeDouble:
    """Steps are taken by the test; the sink is called as the real one would."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.attached: dict[str, Attached] = {}
        self.history: list[str] = []
        #: Raised by the next attach.
        self.fault: TrainingFault | None = None
        #: Attaching waits for it, so that tests can act meanwhile.
        self.gate = threading.Event()
        self.gate.set()
        self.changed = threading.Condition()

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
        self.note(f"attaching {job.job_id}")
        assert self.gate.wait(30)
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        if job.job_id in self.attached:
            raise SystemFault(f"Job {job.job_id} is already on this node.")
        checkpoint = checkpoint_paths[0].read_bytes() if checkpoint_paths else None
        self.attached[job.job_id] = Attached(job, sink, data_path.read_bytes(), checkpoint)
        self.note(f"attached {job.job_id}")

    def detach(self, job_id: str, *, checkpoint: bool, may_end: bool = False) -> None:
        if may_end and job_id in self.attached and self.attached[job_id].step == TOTAL_STEPS:
            self.note(f"left {job_id} to end")
            return
        job = self.attached.pop(job_id, None)
        self.note(f"detached {job_id} {'with' if checkpoint else 'without'} checkpoint")
        if job is not None and checkpoint:
            job.sink.checkpointed(self.checkpoint_file(job), job.step)
            job.sink.paused(job.summary())

    def probe(
        self, probe: ProbeTask, paths: Mapping[str, Path], *, expires_at: float
    ) -> ProbeResult:
        """Each adapter's loss is the number in its file."""
        losses = tuple(
            ProbeLoss(one.name, float(paths[one.name].read_text()) if one.name in paths else None)
            for one in probe.adapters
        )
        return ProbeResult(3.0, losses)

    def note(self, what: str) -> None:
        with self.changed:
            self.history.append(what)
            self.changed.notify_all()

    def wait_for(self, what: str, *, times: int = 1) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: self.history.count(what) >= times, 30):
                raise AssertionError(f"{what!r} never happened: {self.history}")

    # What the training loop would do.

    def steps(self, job_id: str, count: int = 1, *, loss: float | None = 2.5) -> None:
        job = self.attached[job_id]
        for _ in range(count):
            job.step += 1
            job.sink.progress(
                ProgressEvent(
                    seq=job.step,
                    at=time.time(),
                    step=job.step,
                    total_steps=TOTAL_STEPS,
                    epoch=job.step / TOTAL_STEPS,
                    samples_done=job.step * 8,
                    train_loss=loss,
                    log=(f"step {job.step}",),
                )
            )

    def checkpoint_file(self, job: Attached) -> Path:
        folder = self.work / job.spec.job_id
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"step-{job.step:08d}.safetensors"
        path.write_bytes(b"checkpoint of step %d" % job.step)
        return path

    def write_checkpoint(self, job_id: str) -> None:
        job = self.attached[job_id]
        job.sink.checkpointed(self.checkpoint_file(job), job.step)

    def finish(self, job_id: str) -> None:
        job = self.attached.pop(job_id)
        folder = self.work / job_id / "adapter"
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text("{}")
        (folder / "adapter_model.safetensors").write_bytes(ADAPTER_WEIGHTS)
        (folder / "secret.txt").write_text("not part of an adapter")
        job.step = TOTAL_STEPS
        job.sink.finished(folder, job.summary())

    def fail(self, job_id: str, fault: Fault, reason: str) -> None:
        job = self.attached.pop(job_id)
        job.sink.failed(fault, reason, job.summary())
