"""One case on a GPU: steps of all jobs, a job at a time, and stock PEFT's, in this order.

Not interleaved, so that two copies of a large base never share the memory; a GPU that no one
else uses is quiet enough for that.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from workers.bench.cases import BenchCase
from workers.bench.contestants import Fused, SequentialPeft, build_random_base
from workers.protocol.memory import GB, USABLE_SHARE, sum_total_gb
from workers.protocol.model_shape import BasePart
from workers.protocol.part_memory import fit_pack
from workers.protocol.pass_bytes import DeviceProfile

log = logging.getLogger(__name__)

#: Peak dense bfloat16 arithmetic of GPUs by a part of their name, in FLOP/s.
PEAK_FLOPS = {
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "A40": 150e12,
    "4090": 165e12,
    "A10": 125e12,
    "T4": 65e12,
}
_WARM_UPS = 2


def measure_gpu(
    case: BenchCase, *, device: torch.device, repeats: int, until: float
) -> dict[str, Any]:
    """Time, memory and utilisation of one case.

    Parameters
    ----------
    until : float
        ``time.monotonic()`` from which no repetition begins; each way has at least one.

    Returns
    -------
    dict
        Ready for JSON. ``ratio`` compares the tokens per second with stock PEFT's, padded or
        packed, whichever is faster; ``in_turn_ratio`` with this engine's own, a job at a time.
    """
    cuda = device.type == "cuda"
    dtype = torch.bfloat16 if cuda else torch.float32
    fused = Fused(case, build_random_base(case.base, device, dtype), 2 * (repeats + _WARM_UPS) + 1)
    parameters = sum(p.numel() for p in fused.base_parameters)
    row: dict[str, Any] = {
        "case": case.name,
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "torch": torch.__version__,
        "base": case.base,
        "parameters": parameters,
        "jobs": case.jobs,
        "batch": case.batch,
        "length": case.length,
        "ragged": case.ragged,
        "goal": case.goal,
        "memory_goal": case.memory_goal,
    }
    predicted_gb = _size_pack(fused, case, device) if cuda else 0.0
    plain = _Timing(fused.step, device, repeats, until)
    row |= plain.figures("plain", parameters, row["device"])
    if cuda:
        row["predicted_ratio"] = round(predicted_gb / plain.peak_gb, 3)
    # the best loop for one job that there is: this engine's own
    fused.trainer.model.is_packed = False
    in_turn = _Timing(fused.step, device, repeats, until)
    row |= in_turn.figures("in_turn", parameters, row["device"])
    row["in_turn_ratio"] = round(plain.tokens_per_s / in_turn.tokens_per_s, 3)
    del fused
    _release(cuda)
    stocks = []
    for packed in (False, True):
        base = build_random_base(case.base, device, dtype)
        peft = SequentialPeft(case, base, repeats + _WARM_UPS, packed=packed)
        stocks.append(_Timing(peft.step, device, repeats, until))
        name = "packed_peft" if packed else "padded_peft"
        row |= stocks[-1].figures(name, parameters, row["device"])
        del peft, base
        _release(cuda)
    stock = max(stocks, key=lambda timing: timing.tokens_per_s)
    row["ratio"] = round(plain.tokens_per_s / stock.tokens_per_s, 3)
    if cuda:
        row["memory_ratio"] = round(plain.peak_gb / (case.jobs * stock.peak_gb), 3)
    return row


def _size_pack(fused: Fused, case: BenchCase, device: torch.device) -> float:
    """Have packs as large as a node would, and give the GB that a node reckons with."""
    trainer, model, profile = fused.trainer, fused.trainer.model, DeviceProfile("cuda", 2)
    base_gb = sum(p.numel() * p.element_size() for p in fused.base_parameters) / GB
    limit_gb = USABLE_SHARE["cuda"] * torch.cuda.get_device_properties(device).total_memory / GB
    needs = [job.memory_need for job in trainer.jobs.values()]
    rows = {"needs": needs, "longest_tokens": case.length}
    parts = [BasePart(model.shape.layers, base_gb)]
    pack = fit_pack(model.shape, profile, parts=parts, limit_gb=limit_gb, **rows)
    assert pack is not None, "these jobs do not fit on this device"
    trainer.token_budget, model.checkpoint_layers = pack.token_budget, pack.recompute
    taken = min(pack.token_budget, case.jobs * case.batch * case.length)
    pack = replace(pack, token_budget=taken)
    return sum_total_gb(model.shape, profile, base_gb=base_gb, pack=pack, **rows)


class _Timing:
    """The best step, by tokens per second, and the peak of memory."""

    def __init__(
        self, step: Callable[[], int], device: torch.device, repeats: int, until: float
    ) -> None:
        cuda = device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats(device)
        for _ in range(_WARM_UPS):
            step()
        self.seconds, self.tokens, self.tokens_per_s = 0.0, 0, 0.0
        for done in range(repeats):
            if done and time.monotonic() >= until:
                break
            _settle(cuda)
            began = time.perf_counter()
            tokens = step()
            _settle(cuda)
            seconds = time.perf_counter() - began
            if tokens / seconds > self.tokens_per_s:
                self.seconds, self.tokens = seconds, tokens
                self.tokens_per_s = tokens / seconds
        self.peak_gb = torch.cuda.max_memory_allocated(device) / 1e9 if cuda else 0.0

    def figures(self, name: str, parameters: int, device_name: str) -> dict[str, Any]:
        return {
            f"{name}_s": round(self.seconds, 5),
            f"{name}_tokens": self.tokens,
            f"{name}_tokens_per_s": round(self.tokens_per_s, 1),
            f"{name}_mfu_4p": mfu_4p(device_name, parameters, self.tokens_per_s),
            f"{name}_peak_gb": round(self.peak_gb, 3),
        }


def mfu_4p(device_name: str, parameters: int, tokens_per_s: float) -> float | None:
    """Model FLOPs utilisation with 4 P per token: forward and activation gradients.

    ``None`` when the device's peak is not known.
    """
    peak = next((flops for name, flops in PEAK_FLOPS.items() if name in device_name), None)
    return None if peak is None else round(4 * parameters * tokens_per_s / peak, 4)


def _settle(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()


def _release(cuda: bool) -> None:
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
