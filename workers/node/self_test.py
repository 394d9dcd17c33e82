"""What this machine is, and how fast it really trains: a short run of the runtime itself."""

from __future__ import annotations

import json
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import psutil
import torch

from workers.protocol.blobs import hash_file
from workers.protocol.job_spec import (
    AdapterSpec,
    BaseModelRef,
    BlobRef,
    DataFormat,
    JobSpec,
    TrainingSpec,
)
from workers.protocol.joining import RELEASE
from workers.protocol.messages import PROTOCOL_VERSION
from workers.protocol.node_facts import NodeFacts, SpeedMeasurement, WorkMeasurement
from workers.protocol.reports import Fault, ProgressEvent
from workers.runtime.job_sink import JobSummary
from workers.runtime.memory_plan import find_host_gb, find_limit_gb
from workers.runtime.node_runtime import NodeRuntime
from workers.runtime.work_timing import LONGEST_TOKENS, TimedRows, spread_evenly, time_work
from workers.training.faults import SystemFault


@dataclass(frozen=True, slots=True)
class SpeedCase:
    """One row of the speed table to measure."""

    batch_size: int
    #: Length of a sample, as a share of the model's context.
    context_share: float
    #: Jobs trained together.
    jobs: int


CASES = (
    *(SpeedCase(1, share, 1) for share in (0.125, 0.5)),
    *(SpeedCase(8, share, jobs) for share in (0.125, 0.5, 1.0) for jobs in (1, 4)),
)
#: For a node that should be up at once; the speed of other batches is learnt as it works. All jobs
#: together step as many tokens as one does.
QUICK_CASES = (SpeedCase(8, 0.125, 1), SpeedCase(8, 0.5, 1), SpeedCase(4, 0.25, 4))
#: Rows whose steps are timed one by one, for the costs of work.
WORK_CASES = (
    TimedRows("short", spread_evenly(0.02, 0.2, 24), 8),
    TimedRows("single short rows", spread_evenly(0.02, 0.3, 6), 1),
    TimedRows("any length", spread_evenly(0.05, 0.95, 24), 8),
    TimedRows("long", spread_evenly(0.7, 1.0, 12), 4),
    TimedRows("long prompts", spread_evenly(0.1, 0.8, 24), 8, trained=0.15),
    TimedRows("many rows", spread_evenly(0.05, 0.4, 64), 32),
    TimedRows("equal rows", (0.25,) * 24, 8),
)
_WORK_REPEATS = 3
#: The rank a measurement trains.
_RANK = 16
#: A case that trains not one step in this time is too slow for the market.
_CASE_LIMIT_S = 300.0
_GPU_MODEL = re.compile(
    r"GH200|[HAB]\d{3}|L40S|L40|L4|A40|A30|A16|A10G|A10|T4|RTX ?A?\d{4}(?: ?Ti)?", re.IGNORECASE
)
_GPU_SIZES_GB = (8, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 141, 180, 192)


def measure_node(
    *,
    device: str,
    base_models: Iterable[BaseModelRef],
    memory_gb: float | None = None,
    cases: tuple[SpeedCase, ...] = CASES,
    work_cases: tuple[TimedRows, ...] = WORK_CASES,
    seconds_each: float = 1.0,
    say: Callable[[str], None] = lambda _: None,
) -> NodeFacts:
    """Find out what the market asks about a node.

    Parameters
    ----------
    memory_gb : float, optional
        What the node may use; by default most of what the device has.
    cases : tuple of SpeedCase
        Rows of the speed table.
    work_cases : tuple of TimedRows
        What a zone without nodes fits its costs of work to; none to spare the time.
    seconds_each : float
        How long each case is timed, after its first step.

    Raises
    ------
    UserFault, SystemFault
        When a base model cannot be trained here.
    """
    devices = [torch.device(name) for name in device.split(",")]
    offered = memory_gb or find_limit_gb(devices)
    if len(devices) > 1:
        cases = (*cases, *list_full_cases(cases, devices=len(devices)))
    speeds: list[SpeedMeasurement] = []
    work: list[WorkMeasurement] = []
    load_s = 0.0
    with tempfile.TemporaryDirectory(prefix="finetender-selftest-") as folder:
        runtime = NodeRuntime(device=device, cache_dir=Path(folder), memory_limit_gb=offered)
        try:
            for ref in base_models:
                say(f"loading {ref.name}")
                began = time.monotonic()
                runtime.resident(ref)
                load_s = max(load_s, time.monotonic() - began)
                for measured in measure_speeds(
                    runtime, ref, cases=cases, folder=Path(folder), seconds_each=seconds_each
                ):
                    say(
                        f"{ref.name}: {measured.jobs} x batch {measured.batch_size} of "
                        f"{measured.sequence_length} tokens: {measured.samples_per_s:.1f} samples/s"
                    )
                    speeds.append(measured)
                if work_cases:
                    say(f"{ref.name}: timing rows of {len(work_cases)} kinds")
                    # No job is left on the runtime, so its loop does not touch the model.
                    work += time_work(runtime.resident(ref), work_cases, repeats=_WORK_REPEATS)
        finally:
            runtime.close()
    return NodeFacts(
        hostname=socket.gethostname(),
        device=devices[0].type,
        gpu_type=find_gpu_type(device),
        gpu_count=torch.cuda.device_count() if device.startswith("cuda") else 0,
        memory_gb=round(offered, 3),
        cores=count_usable_cores(),
        torch_version=torch.__version__,
        host_gb=find_host_gb(),
        protocol_version=PROTOCOL_VERSION,
        speeds=tuple(speeds),
        work=tuple(work),
        release=RELEASE,
        load_s=round(load_s, 3),
    )


def list_full_cases(cases: Iterable[SpeedCase], *, devices: int) -> list[SpeedCase]:
    """Cases with so many jobs that each part of a group has a pack to work on.

    All jobs together have as many rows as those of the case that it is made of, or a large base
    would make no three steps in the time that a case has.
    """
    jobs = 2 * devices - 1
    return [
        replace(case, batch_size=max(1, case.batch_size * case.jobs // jobs), jobs=jobs)
        for case in cases
        if case.jobs > 1
    ]


def measure_speeds(
    runtime: NodeRuntime,
    ref: BaseModelRef,
    *,
    cases: tuple[SpeedCase, ...],
    folder: Path,
    seconds_each: float,
) -> Iterable[SpeedMeasurement]:
    """Train random text on the runtime and count the samples of all jobs together."""
    resident = runtime.resident(ref)
    base_gb = resident.plan.base_gb
    context = min(resident.model.context_length, LONGEST_TOKENS)
    for case in cases:
        length = max(8, int(context * case.context_share))
        data = _write_rows(folder / f"rows-{length}.jsonl", tokens=length)
        if runtime.device.type == "cuda":
            for one in runtime.devices:
                torch.cuda.reset_peak_memory_stats(one)
        meters = [_Meter() for _ in range(case.jobs)]
        jobs = [
            _job(f"selftest-{index}", ref, data, case.batch_size, length)
            for index in range(case.jobs)
        ]
        # Together, so that they do not wait for a step each, to come and to go.
        with ThreadPoolExecutor(case.jobs) as together:
            attach = partial(_attach, runtime, data)
            coming = [together.submit(attach, *one) for one in zip(jobs, meters, strict=True)]
            # all of them, so that none comes after they were taken off
            refusals = [one.exception() for one in coming]
            try:
                if case.jobs > 1 and any(isinstance(one, SystemFault) for one in refusals):
                    # so many jobs do not fit here, and the market sells by memory
                    continue
                for one in coming:
                    one.result()
                speeds = [meter.samples_per_s(seconds_each) for meter in meters]
                jobs_gb = max(meter.memory_gb for meter in meters) - base_gb
            finally:
                list(together.map(partial(_detach, runtime), jobs))
        yield SpeedMeasurement(
            base_model=ref.name,
            batch_size=case.batch_size,
            sequence_length=length,
            jobs=case.jobs,
            samples_per_s=round(sum(speeds), 4),
            tokens_per_s=round(sum(speeds) * length, 2),
            base_memory_gb=round(base_gb, 6),
            job_memory_gb=round(max(0.0, jobs_gb) / case.jobs, 6),
            base_sha256=resident.sha256,
            parts=resident.plan.parts,
        )


def _attach(runtime: NodeRuntime, data: Path, job: JobSpec, meter: _Meter) -> None:
    runtime.attach(job=job, data_path=data, validation_path=None, sink=meter)


def _detach(runtime: NodeRuntime, job: JobSpec) -> None:
    runtime.detach(job.job_id, checkpoint=False)


class _Meter:
    """A sink that times a job between its reports."""

    def __init__(self) -> None:
        self._reports: list[ProgressEvent] = []
        self._fault: str | None = None
        self._heard = threading.Condition()
        #: The most that base and jobs took together.
        self.memory_gb = 0.0

    def samples_per_s(self, seconds: float) -> float:
        """The job's speed in the best of at least two stretches between reports.

        The first step is left out, as it warms up; the best stretch, because what else
        the machine does for a moment is not its speed.

        Raises
        ------
        SystemFault
            When the job failed, or did not come that far.
        """
        with self._heard:
            self._heard.wait_for(lambda: self._fault or self._enough(seconds), _CASE_LIMIT_S)
            if self._fault or not self._enough(0.0):
                raise SystemFault(
                    "The self-test could not train on this machine: "
                    f"{self._fault or f'not three steps in {_CASE_LIMIT_S:.0f} seconds'}."
                )
            return max(
                (after.samples_done - before.samples_done) / (after.at - before.at)
                for before, after in pairwise(self._reports)
            )

    def _enough(self, seconds: float) -> bool:
        reports = self._reports
        return len(reports) >= 3 and reports[-1].at - reports[0].at >= seconds

    def progress(self, event: ProgressEvent) -> None:
        with self._heard:
            self.memory_gb = max(self.memory_gb, event.memory_gb or 0.0)
            last = self._reports[-1] if self._reports else None
            if event.step > (last.step if last else 0) and event.at > (last.at if last else 0.0):
                self._reports.append(event)
            self._heard.notify_all()

    def checkpointed(self, path: Path, step: int) -> None:
        pass

    def paused(self, summary: JobSummary) -> None:
        pass

    def finished(self, adapter_dir: Path, summary: JobSummary) -> None:
        self._end("the training ended before it could be timed")

    def failed(self, fault: Fault, reason: str, summary: JobSummary) -> None:
        self._end(reason)

    def _end(self, reason: str) -> None:
        with self._heard:
            self._fault = reason.rstrip(".")
            self._heard.notify_all()


def _write_rows(path: Path, *, tokens: int) -> Path:
    """Rows of at least ``tokens`` tokens: no tokenizer makes one of two numbers."""
    with path.open("w", encoding="utf-8") as file:
        for row in range(64):
            words = " ".join(
                str((row * 7919 + index * 104729) % 100_000) for index in range(tokens)
            )
            file.write(json.dumps({"text": words}) + "\n")
    return path


def _job(name: str, ref: BaseModelRef, data: Path, batch_size: int, length: int) -> JobSpec:
    return JobSpec(
        job_id=name,
        base_model=ref,
        data_format=DataFormat.TEXT,
        dataset=BlobRef(url="/selftest", sha256=hash_file(data), bytes=data.stat().st_size),
        adapter=AdapterSpec(rank=_RANK, alpha=2.0 * _RANK),
        training=TrainingSpec(
            epochs=1000,
            batch_size=batch_size,
            learning_rate=1e-6,
            schedule="constant",
            sequence_length=length,
            validation_share=0.0,
        ),
        checkpoint_every_s=1e9,
    )


def measure_memory_used_gb(device: str) -> float | None:
    """What this process holds on the device now."""
    if device.startswith("cuda"):
        return sum(map(torch.cuda.memory_allocated, device.split(","))) / 1e9
    return psutil.Process().memory_info().rss / 1e9


def count_usable_cores() -> int:
    process = psutil.Process()
    # Not every system can say which cores a process may use.
    if hasattr(process, "cpu_affinity"):
        return len(process.cpu_affinity() or [0])
    return psutil.cpu_count() or 1


def find_gpu_type(device: str) -> str:
    """The device's name in the fleet, such as ``A100-80GB``; all CPUs are ``cpu``."""
    if not device.startswith("cuda"):
        return "cpu"
    properties = torch.cuda.get_device_properties(device.partition(",")[0])
    return normalize_gpu_name(properties.name, properties.total_memory)


def normalize_gpu_name(name: str, total_bytes: int) -> str:
    """A short name from what the driver says."""
    gib = total_bytes / 1024**3
    size = min(_GPU_SIZES_GB, key=lambda known: abs(known - gib))
    found = _GPU_MODEL.search(name)
    model = found.group() if found else name.replace("NVIDIA", "").strip() or "gpu"
    slug = re.sub(r"[^A-Za-z0-9]+", "-", model).strip("-")[:48]
    return f"{slug}-{size}GB"
