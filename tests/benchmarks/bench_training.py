"""``make bench-training``: one JSON line per case, fused engine against N stock PEFT runs.

The cases with a goal fail the command when they miss it; the pause-and-step and the
move cases report the milliseconds of a context switch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tests.benchmarks.smallest import add_smallest
from workers.bench.cases import CPU_CASES, GPU_CASES, BenchCase
from workers.bench.contestants import Fused, build_random_base
from workers.bench.gpu import measure_gpu
from workers.bench.measure import measure
from workers.training.checkpoint import TrainingState, load_checkpoint, save_checkpoint
from workers.training.job import TrainingProgress


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bench_training")
    add_smallest(parser)
    smallest: bool = parser.parse_args(arguments).smallest
    warnings.filterwarnings("ignore", category=FutureWarning)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    missed = []
    cases = GPU_CASES if cuda else CPU_CASES
    for case in cases[:1] if smallest else cases:
        if cuda:
            until = time.monotonic() + 600
            row = measure_gpu(case, device=device, repeats=1 if smallest else 9, until=until)
        else:
            row = measure(case, repeats=1 if smallest else 9)
        print(json.dumps(row), flush=True)
        if case.goal is not None and row["ratio"] < case.goal:
            missed.append(case.name)
    print(json.dumps(context_switch(device, repeats=2 if smallest else 20)), flush=True)
    print(json.dumps(state_move(layers=1 if smallest else 10)), flush=True)
    if smallest:
        return 0
    if missed:
        print(f"below their goal: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def context_switch(device: torch.device, *, repeats: int) -> dict[str, object]:
    """Pause one job and step another on a warm base, in milliseconds; the goal is 1 s p95."""
    case = BenchCase("switch", "gpt2" if device.type == "cuda" else "tiny-llama", 2, 4, 64)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    fused = Fused(case, build_random_base(case.base, device, dtype), repeats * 2 + 2)
    trainer = fused.trainer
    fused.step()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        first = next(iter(trainer.jobs))
        values = {name: value.clone() for name, value, _ in trainer.model.tensors(first)}
        job = trainer.remove(first)
        job.batch = None
        trainer.round()
        taken.append(1000 * (time.perf_counter() - began))
        trainer.add(job, values)
    return {
        "case": "pause one job and step another",
        "device": device.type,
        "p50_ms": round(statistics.median(taken), 2),
        "p95_ms": round(sorted(taken)[int(0.95 * len(taken))], 2),
        "goal_ms": 1000,
    }


def state_move(*, layers: int) -> dict[str, object]:
    """Write, sync and read back state, of ten layers half a gigabyte; the goal is then 10 s."""
    tensors = {f"layer-{index}": torch.randn(1024, 4096) for index in range(layers)}
    checkpoint = TrainingState(
        job_id="move",
        fingerprint="0",
        progress=TrainingProgress(step=1),
        params=tensors,
        means={name: value.clone() for name, value in tensors.items()},
        squares={name: value.clone() for name, value in tensors.items()},
        row_losses=np.zeros(1, dtype=np.float32),
        metrics=np.zeros((1, 7)),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        began = time.perf_counter()
        save_checkpoint(checkpoint, path)
        written = time.perf_counter()
        load_checkpoint(path)
        read = time.perf_counter()
        size = path.stat().st_size
    return {
        "case": "move a job's state through a file",
        "gb": round(size / 1e9, 3),
        "write_s": round(written - began, 3),
        "read_and_verify_s": round(read - written, 3),
        "goal_s": 10,
    }


if __name__ == "__main__":
    sys.exit(main())
