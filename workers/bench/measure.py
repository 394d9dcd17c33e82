"""Side-by-side timing of one case on a CPU, as one JSON-able row."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from workers.bench.cases import BenchCase
from workers.bench.contestants import Fused, SequentialPeft, build_random_base

CPU = torch.device("cpu")


def measure(case: BenchCase, *, repeats: int = 5, warmup: int = 2) -> dict[str, Any]:
    """Time both contestants in turn, so that a noisy machine hits both.

    Returns
    -------
    dict
        ``ratio`` is the best sequential time over the best fused time of interleaved
        pairs, as what else a machine does only ever adds time; ``ratio_median`` is the
        median over the pairs; ``ratio_cpu`` compares the best processor times, which other
        work on the machine disturbs less (with several threads, waiting counts in it).
    """
    steps = repeats + warmup
    fused = Fused(case, build_random_base(case.base, CPU, torch.float32), steps)
    peft = SequentialPeft(case, build_random_base(case.base, CPU, torch.float32), steps)
    for _ in range(warmup):
        fused.step()
        peft.step()
    ours, theirs = [], []
    for _ in range(repeats):
        ours.append(_timed(fused.step))
        theirs.append(_timed(peft.step))
        assert ours[-1][2] == theirs[-1][2], "both must train the same tokens"
    fused_s, fused_cpu_s, tokens = (min(column) for column in zip(*ours, strict=True))
    peft_s, peft_cpu_s, _ = (min(column) for column in zip(*theirs, strict=True))
    ratios = [other[0] / own[0] for own, other in zip(ours, theirs, strict=True)]
    return {
        "case": case.name,
        "device": "cpu",
        "threads": torch.get_num_threads(),
        "products": fused.trainer.model.stream.products.name,
        "base": case.base,
        "parameters": sum(p.numel() for p in fused.base_parameters),
        "jobs": case.jobs,
        "batch": case.batch,
        "length": case.length,
        "ragged": case.ragged,
        "tokens_per_step": tokens,
        "fused_s": round(fused_s, 5),
        "sequential_peft_s": round(peft_s, 5),
        "ratio": round(peft_s / fused_s, 3),
        "ratio_median": round(statistics.median(ratios), 3),
        "ratio_cpu": round(peft_cpu_s / fused_cpu_s, 3),
        "goal": case.goal,
        "fused_tokens_per_s": round(tokens / fused_s, 1),
        "torch": torch.__version__,
    }


def _timed(step: Any) -> tuple[float, float, int]:
    """Seconds by the clock, seconds of the processor, and tokens of a step."""
    began, began_cpu = time.perf_counter(), time.process_time()
    tokens = step()
    return time.perf_counter() - began, time.process_time() - began_cpu, tokens
