"""Side-by-side timing of one case, as one JSON-able row."""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any

import torch

from workers.bench.cases import Case
from workers.bench.contestants import Fused, SequentialPeft, random_base

#: Peak dense bfloat16 arithmetic of GPUs by a part of their name, in FLOP/s.
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "A40": 150e12}


def measure(
    case: Case, *, device: torch.device, repeats: int = 5, warmup: int = 2
) -> dict[str, Any]:
    """Time both contestants in turn, so that a noisy machine hits both.

    Returns
    -------
    dict
        ``ratio`` is the best sequential time over the best fused time of interleaved
        pairs, as what else a machine does only ever adds time; ``ratio_median`` is the
        median over the pairs.
    """
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    steps = repeats + warmup
    fused = Fused(case, random_base(case.base, device, dtype), steps)
    fused_memory = _peak(device, fused.step)
    for _ in range(warmup - 1):
        fused.step()
    peft = SequentialPeft(case, random_base(case.base, device, dtype), steps)
    for _ in range(warmup):
        peft.step()
    ratios, fused_s, peft_s, tokens = [], [], [], 0
    for _ in range(repeats):
        seconds, tokens = _timed(fused.step, device)
        fused_s.append(seconds)
        other, peft_tokens = _timed(peft.step, device)
        assert tokens == peft_tokens, (tokens, peft_tokens)
        peft_s.append(other)
        ratios.append(other / seconds)
    parameters = sum(p.numel() for p in peft.model.parameters() if not p.requires_grad)
    row: dict[str, Any] = {
        "case": case.name,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": None if device.type == "cuda" else torch.get_num_threads(),
        "base": case.base,
        "parameters": parameters,
        "jobs": case.jobs,
        "batch": case.batch,
        "length": case.length,
        "ragged": case.ragged,
        "tokens_per_step": tokens,
        "fused_s": round(min(fused_s), 5),
        "sequential_peft_s": round(min(peft_s), 5),
        "ratio": round(min(peft_s) / min(fused_s), 3),
        "ratio_median": round(statistics.median(ratios), 3),
        "goal": case.goal,
        "fused_tokens_per_s": round(tokens / min(fused_s), 1),
        "torch": torch.__version__,
    }
    if device.type == "cuda":
        del fused
        gc.collect()
        torch.cuda.empty_cache()
        peft_memory = _peak(device, peft.step) or 0.0
        row |= {
            "mfu_4p": _mfu(row, parameters),
            "fused_peak_gb": fused_memory,
            "peft_peak_gb_each": peft_memory,
            "memory_ratio": round((fused_memory or 0) / (case.jobs * peft_memory), 3),
            "memory_goal": case.memory_goal,
        }
    return row


def _timed(step: Any, device: torch.device) -> tuple[float, int]:
    _settle(device)
    began = time.perf_counter()
    tokens = step()
    _settle(device)
    return time.perf_counter() - began, tokens


def _peak(device: torch.device, action: Any) -> float | None:
    if device.type != "cuda":
        action()
        return None
    torch.cuda.reset_peak_memory_stats(device)
    action()
    return round(torch.cuda.max_memory_allocated(device) / 1e9, 3)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _mfu(row: dict[str, Any], parameters: int) -> float | None:
    """Model FLOPs utilisation with 4 P per token: forward and activation gradients."""
    peak = next((flops for name, flops in PEAK_FLOPS.items() if name in row["device"]), None)
    return None if peak is None else round(4 * parameters * row["fused_tokens_per_s"] / peak, 4)
