"""``python -m workers.bench prompts``: a soft prompt's way to its first step, on a CPU.

Three JSON lines. ``lookup``: 60 known prompts and the job's own by halving, on the bundled base.
``start``: from the order of a job to its first step on a
resident base. ``gang``: a step of 32 rows with one further process, beside one without.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from workers.bench.warm import BASE, DATA, StepClock, is_chat
from workers.protocol.adapter_names import PROMPT
from workers.protocol.blobs import hash_file
from workers.protocol.job_spec import (
    AdapterKind,
    AdapterSpec,
    BlobRef,
    DataFormat,
    JobSpec,
    TrainingSpec,
)
from workers.protocol.pass_bytes import PACK_TOKENS
from workers.runtime.node_runtime import NodeRuntime
from workers.runtime.resident import load_resident
from workers.training.data import PreparedData, RowCounts
from workers.training.job import TrainingJob
from workers.training.packing import Example, TokenSequence
from workers.training.prompt_lookup import LookupRun

CANDIDATES, TOKENS_OF_ROW = 60, 64
ADAPTER = AdapterSpec(kind=AdapterKind.SOFT_PROMPT, virtual_tokens=20)
REPEATS = 3
#: Steps of a gang, of which the median is reported.
STEPS = 5


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m workers.bench prompts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)
    load = round(os.getloadavg()[0], 1)
    for measure in (measure_lookup, measure_start, measure_gang):
        print(json.dumps(measure() | {"load": load}), flush=True)
    return 0


def measure_lookup() -> dict[str, Any]:
    """Seconds of a lookup of 60 candidates on rows of 64 tokens."""
    resident = load_resident(BASE, device=torch.device("cpu"), limit_gb=8.0)
    model = resident.model
    job = TrainingJob(
        _spec("lookup", TrainingSpec(batch_size=16)),
        _prepare_random_rows(32, vocabulary=model.model.config.vocab_size),
    )
    width = model.model.config.hidden_size
    generator = torch.Generator().manual_seed(0)
    shape = (ADAPTER.virtual_tokens, width)
    prompts = {f"p{i}": torch.randn(shape, generator=generator) for i in range(CANDIDATES)}
    own = model.draw_initial_values(ADAPTER, seed=0)[PROMPT]
    times: list[float] = []
    losses = 0
    for _ in range(REPEATS):
        began = time.perf_counter()
        run = LookupRun(
            job, candidates=prompts, own=own, token_budget=PACK_TOKENS["cpu"], budget_s=60.0
        )
        figures = None
        while figures is None:
            figures = run.score_pack(model)
        times.append(time.perf_counter() - began)
        losses = figures.losses
    seconds = round(statistics.median(times), 3)
    return {"case": "lookup", "candidates": CANDIDATES, "losses": losses, "s": seconds, "goal_s": 1}


def measure_start() -> dict[str, Any]:
    """Seconds from the order of a soft prompt to its first step, the base being resident."""
    with tempfile.TemporaryDirectory() as folder:
        runtime = NodeRuntime(device="cpu", cache_dir=Path(folder))
        try:
            times = [_time_start(runtime, f"job-{i}") for i in range(REPEATS + 1)]
        finally:
            runtime.close()
    # The first finds the number of threads.
    return {"case": "start", "s": round(statistics.median(times[1:]), 3), "goal_s": 1}


def _time_start(runtime: NodeRuntime, name: str) -> float:
    runtime.resident(BASE)
    clock = StepClock()
    clock.watch(runtime)
    began = time.perf_counter()
    _attach(runtime, clock, name, batch_size=8)
    first = clock.wait_for_step(name)
    runtime.detach(name, checkpoint=False)
    return first - began


def measure_gang() -> dict[str, Any]:
    """Seconds of a step of 32 rows, alone and with one further process."""
    alone, together = _time_step([]), _time_step(["cpu"])
    return {
        "case": "gang",
        "alone_s": round(alone, 4),
        "two_processes_s": round(together, 4),
        "speed_up": round(alone / together, 2),
    }


def _time_step(devices: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        # One thread each, so that two processes are two devices.
        runtime = NodeRuntime(
            device="cpu", cache_dir=Path(folder), gang_devices=devices, reproducible=True
        )
        try:
            gang = runtime.resident(BASE).trainer.gang
            while gang is not None and not gang.members:
                time.sleep(0.1)
            clock = StepClock()
            clock.watch(runtime)
            _attach(runtime, clock, "gang", batch_size=32)
            began = clock.wait_for_step("gang")
            trainer = runtime.resident(BASE).trainer
            step = trainer.jobs["gang"].progress.step
            while trainer.jobs["gang"].progress.step < step + STEPS:
                time.sleep(0.01)
            return (time.perf_counter() - began) / STEPS
        finally:
            runtime.close()


def _attach(runtime: NodeRuntime, clock: StepClock, name: str, *, batch_size: int) -> None:
    # Too long to end by itself; no evaluation before the first step.
    training = TrainingSpec(epochs=1000, batch_size=batch_size, validation_share=0.0)
    runtime.attach(job=_spec(name, training), data_path=DATA, validation_path=None, sink=clock)


def _spec(name: str, training: TrainingSpec) -> JobSpec:
    return JobSpec(
        job_id=name,
        base_model=BASE,
        data_format=DataFormat.CHAT if is_chat() else DataFormat.COMPLETION,
        dataset=BlobRef(url="", sha256=hash_file(DATA), bytes=DATA.stat().st_size),
        adapter=ADAPTER,
        training=training,
    )


def _prepare_random_rows(count: int, *, vocabulary: int) -> PreparedData:
    random = np.random.default_rng(0)
    weights = np.ones(TOKENS_OF_ROW, dtype=np.float32)
    weights[: TOKENS_OF_ROW // 2] = 0
    rows = tuple(
        Example(line, (TokenSequence(random.integers(3, vocabulary, TOKENS_OF_ROW), weights),))
        for line in range(1, count + 1)
    )
    counts = RowCounts(
        rows=count,
        train_rows=count,
        valid_rows=0,
        tokens=count * TOKENS_OF_ROW,
        loss_tokens=count * TOKENS_OF_ROW // 2,
        longest_tokens=TOKENS_OF_ROW,
        truncated_lines=(),
        dropped_lines=(),
        sha256="0" * 64,
    )
    return PreparedData(rows, (), "tokens", counts)
