"""``python -m workers.bench warm``: what a resident base spares, on the bundled one.

Two JSON lines. ``switch``: from the last step of one job to the first step of the next on the same
node, as at a slot's end (the first is taken off with a checkpoint, the next attached), beside what
a process takes that has to start and load the base; and the share of the next job's preparation
that hides behind the running one when it is attached before that ends. ``probe``: the base and
eight adapters on 16 rows, beside a job that trains.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workers.models import BUNDLED_PREFIX, DATASETS, TINY
from workers.protocol.blobs import hash_file
from workers.protocol.job_spec import (
    AdapterSpec,
    BaseModelRef,
    BlobRef,
    DataFormat,
    JobSpec,
    TrainingSpec,
)
from workers.protocol.probes import ProbeAdapter, ProbeTask
from workers.protocol.reports import Fault, ProgressEvent
from workers.runtime.job_sink import JobSummary
from workers.runtime.node_runtime import NodeRuntime
from workers.training.step_results import StepFailure, StepResult

BASE = BaseModelRef(name=TINY, source=f"{BUNDLED_PREFIX}{TINY}")
DATA = DATASETS / "support_tone.jsonl"
ADAPTER = AdapterSpec(rank=8, alpha=16.0)
#: Switches, and probes, of which the median is reported.
REPEATS = 5
#: Makes one step in a fresh process, and nothing else.
ONE_STEP = "--one-step"


@dataclass(slots=True)
class StepClock:
    """When each job made its first step and its last so far; also a job's sink."""

    first: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    adapter_dir: Path | None = None

    def watch(self, runtime: NodeRuntime) -> None:
        """Note the moment of every step."""
        trainer = runtime.resident(BASE).trainer
        step = trainer.round

        def timed() -> list[StepResult | StepFailure]:
            results = step()
            now = time.perf_counter()
            with self.changed:
                for result in results:
                    if isinstance(result, StepResult):
                        self.first.setdefault(result.job_id, now)
                        self.last[result.job_id] = now
                self.changed.notify_all()
            return results

        trainer.round = timed

    def wait_for_step(self, job_id: str) -> float:
        with self.changed:
            if not self.changed.wait_for(lambda: job_id in self.first, 120):
                raise TimeoutError(f"{job_id} made no step")
            return self.first[job_id]

    def progress(self, event: ProgressEvent) -> None: ...

    def checkpointed(self, path: Path, step: int) -> None: ...

    def paused(self, summary: JobSummary) -> None: ...

    def finished(self, adapter_dir: Path, summary: JobSummary) -> None:
        with self.changed:
            self.adapter_dir = adapter_dir
            self.changed.notify_all()

    def failed(self, fault: Fault, reason: str, summary: JobSummary) -> None:
        raise RuntimeError(reason)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m workers.bench warm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(ONE_STEP, action="store_true", help=argparse.SUPPRESS)
    with tempfile.TemporaryDirectory() as folder:
        runtime = NodeRuntime(device="cpu", cache_dir=Path(folder))
        try:
            clock = StepClock()
            clock.watch(runtime)
            if parser.parse_args(arguments).one_step:
                _attach(runtime, clock, "fresh")
                clock.wait_for_step("fresh")
                return 0
            print(json.dumps(measure_switch(runtime, clock)), flush=True)
            print(json.dumps(measure_probe(runtime, clock, Path(folder))), flush=True)
        finally:
            runtime.close()
    return 0


def measure_switch(runtime: NodeRuntime, clock: StepClock) -> dict[str, Any]:
    """Seconds between two jobs' steps, warm, prepared beforehand, and in a fresh process."""
    plain = statistics.median(_switch(runtime, clock, f"plain-{i}") for i in range(REPEATS))
    ahead = statistics.median(
        _switch(runtime, clock, f"ahead-{i}", is_ahead=True) for i in range(REPEATS)
    )
    began = time.perf_counter()
    command = [sys.executable, "-m", "workers.bench", "warm", ONE_STEP]
    subprocess.run(command, check=True, capture_output=True)
    return {
        "case": "switch",
        "warm_s": round(plain, 4),
        "warm_prepared_s": round(ahead, 4),
        "hidden_share": round(1 - ahead / plain, 3),
        "fresh_process_s": round(time.perf_counter() - began, 3),
    }


def _switch(runtime: NodeRuntime, clock: StepClock, name: str, *, is_ahead: bool = False) -> float:
    """From the last step of one job to the first of the next."""
    _attach(runtime, clock, f"{name}-first")
    clock.wait_for_step(f"{name}-first")
    if is_ahead:
        _attach(runtime, clock, f"{name}-next")
        runtime.detach(f"{name}-first", checkpoint=True)
    else:
        runtime.detach(f"{name}-first", checkpoint=True)
        _attach(runtime, clock, f"{name}-next")
    first = clock.wait_for_step(f"{name}-next")
    runtime.detach(f"{name}-next", checkpoint=False)
    # A job prepared beforehand may step before the other has left: no pause at all.
    return max(0.0, first - clock.last[f"{name}-first"])


def measure_probe(runtime: NodeRuntime, clock: StepClock, folder: Path) -> dict[str, Any]:
    """Seconds of a probe of eight adapters on a warm node, alone and beside a job."""
    _attach(runtime, clock, "donor", TrainingSpec(epochs=1, batch_size=32))
    with clock.changed:
        clock.changed.wait_for(lambda: clock.adapter_dir is not None, 600)
    archive = Path(shutil.make_archive(str(folder / "donor"), "zip", clock.adapter_dir))
    alone = statistics.median(_probe(runtime, archive) for _ in range(REPEATS))
    _attach(runtime, clock, "beside")
    clock.wait_for_step("beside")
    beside = statistics.median(_probe(runtime, archive) for _ in range(REPEATS))
    runtime.detach("beside", checkpoint=False)
    return {"case": "probe", "alone_s": round(alone, 3), "beside_a_job_s": round(beside, 3)}


def _probe(runtime: NodeRuntime, archive: Path) -> float:
    names = [f"donor-{i}" for i in range(8)]
    blob = BlobRef(url="", sha256="", bytes=0)
    probe = ProbeTask(
        base_model=BASE,
        data_format=DataFormat.CHAT if is_chat() else DataFormat.COMPLETION,
        rows=tuple(DATA.read_text(encoding="utf-8").splitlines()[:16]),
        sequence_length=128,
        adapters=tuple(ProbeAdapter(name, blob, ADAPTER) for name in names),
    )
    began = time.perf_counter()
    found = runtime.probe(probe, dict.fromkeys(names, archive), expires_at=time.time() + 600)
    if found.base_loss is None or any(one.loss is None for one in found.losses):
        raise RuntimeError("the probe was not answered whole")
    return time.perf_counter() - began


def is_chat() -> bool:
    return "messages" in json.loads(DATA.read_text(encoding="utf-8").splitlines()[0])


def _attach(
    runtime: NodeRuntime, clock: StepClock, name: str, training: TrainingSpec | None = None
) -> None:
    data = BlobRef(url="", sha256=hash_file(DATA), bytes=DATA.stat().st_size)
    spec = JobSpec(
        job_id=name,
        base_model=BASE,
        data_format=DataFormat.CHAT if is_chat() else DataFormat.COMPLETION,
        dataset=data,
        adapter=ADAPTER,
        # Too long to end by itself; no evaluation before the first step.
        training=training or TrainingSpec(epochs=1000, validation_share=0.0),
    )
    runtime.attach(job=spec, data_path=DATA, validation_path=None, sink=clock)
