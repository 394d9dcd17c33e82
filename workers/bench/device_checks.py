"""Checks of a device's memory, and of what happens at its end or when the device fails."""

from __future__ import annotations

import json
import math
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from workers.bench.cases import BenchCase
from workers.bench.check_jobs import BUNDLED, build_spec, run_node, train, write_rows
from workers.bench.contestants import Fused, build_random_base
from workers.bench.memory import MIX_MOST_ABOVE, MemoryCase, measure_case, measure_peak
from workers.bench.product_checks import build_llama, compute_nll
from workers.protocol.job_bytes import JobNeed, count_state_bytes
from workers.protocol.job_spec import AdapterSpec, BaseModelRef, DataFormat
from workers.protocol.memory import GB
from workers.protocol.pass_bytes import DeviceProfile
from workers.protocol.reports import Fault
from workers.training.faults import SystemFault
from workers.training.packed_model import PackedModel
from workers.training.rehearsal import build_rehearsal_pack

_LONG_TOKENS = 32_768


def check_memory(device: torch.device) -> Iterator[dict[str, Any]]:
    """Peaks of jobs of one rank and of mixed ones against what was counted: never below."""
    tokens = 8192 if device.type == "cuda" else 256
    mixed = tuple(
        AdapterSpec(rank=rank, dropout=dropout)
        for rank, dropout in ((4, 0.0), (16, 0.0), (64, 0.1), (256, 0.0))
    )
    cases = {
        "one of rank 16": (AdapterSpec(rank=16),),
        "eight of rank 16": (AdapterSpec(rank=16),) * 8,
        "ranks 4 to 256, dropout": mixed,
    }
    for name, adapters in cases.items():
        for recompute in (False, True):
            case = MemoryCase(
                name, "llama", adapters, tokens, tokens // 8, recompute, most_above=MIX_MOST_ABOVE
            )
            row = measure_case(case, device)
            yield {key: row[key] for key in ("ok", "name", "recompute", "ratio", "measured_gb")}


@contextmanager
def _limit_memory(device: torch.device, room: float) -> Iterator[None]:
    """Leave this process so many bytes meanwhile."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(device).total_memory
        limit = torch.cuda.memory_reserved(device) + room
        torch.cuda.set_per_process_memory_fraction(limit / total, device)
    else:
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(
            resource.RLIMIT_AS, (int(psutil.Process().memory_info().vms + room), before[1])
        )
    try:
        yield
    finally:
        if device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(1.0, device)
        else:
            resource.setrlimit(resource.RLIMIT_AS, before)


def check_attach(device: torch.device) -> Iterator[dict[str, Any]]:
    """An adapter that finds no memory leaves its neighbour as it was, and is taken later."""
    case = BenchCase("", "tiny-llama", 1, 2, 32)
    fused = Fused(case, build_random_base(case.base, device, torch.float32), 8)
    fused.step()
    model, adapter = fused.trainer.model, AdapterSpec(rank=256)
    needed = count_state_bytes(model.shape, DeviceProfile(device.type, 4), JobNeed(adapter))

    job, values = fused.draw(1, adapter)
    before = _list_places(fused, device)
    for part in (0.1, 0.5, 0.8):
        said = ""
        with _limit_memory(device, part * needed):
            try:
                fused.trainer.add(job, values)
            except SystemFault as fault:
                said = str(fault)
        is_same = _list_places(fused, device) == before
        yield {"ok": "out of memory" in said and is_same, "room": part, "reason": said}
    fused.trainer.add(job, values)
    yield {"ok": fused.step() > 0 and len(fused.trainer.jobs) == 2, "room": "all"}


def _list_places(fused: Fused, device: torch.device) -> list[object]:
    """What is allocated, and where each job's tensors begin in their stacks."""
    model = fused.trainer.model
    held = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    places = [
        (name, job, tensor.storage_offset(), tensor.shape)
        for job in sorted(model.trained)
        for name, tensor, _ in model.tensors(job)
    ]
    return [held, *places]


def check_long_row(device: torch.device) -> Iterator[dict[str, Any]]:
    """One row of 32,768 tokens, there and back: blocks recomputed, and what goes in spilled too."""
    tokens = _LONG_TOKENS if device.type == "cuda" else _LONG_TOKENS // 32
    config = build_llama(max_position_embeddings=tokens)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = PackedModel(AutoModelForCausalLM.from_config(config, dtype=dtype).to(device))
    model.checkpoint_layers = True
    adapter = AdapterSpec(rank=16)
    model.attach("rehearsal", adapter, model.draw_initial_values(adapter, seed=0))
    pack = build_rehearsal_pack(model, lengths=(tokens,))
    whole: float | None = None
    for spills in (False, True):
        model.spills = spills
        with measure_peak(device) as growth, model.streaming(pack):
            nll = compute_nll(model, pack).mean()
            nll.backward()
        loss = nll.item()
        whole = loss if whole is None else whole
        yield {
            "ok": math.isfinite(loss) and abs(loss - whole) <= 1e-2 * whole,
            "spills": spills,
            "tokens": tokens,
            "loss": loss,
            "peak_gb": (growth.peak_bytes or 0) / GB,
        }


def check_out_of_memory(device: torch.device) -> Iterator[dict[str, Any]]:
    """A row too long for the device ends its own job, and the one beside it finishes."""
    if device.type != "cuda":
        yield {"ok": True, "skipped": "there is no CUDA device"}
        return
    with (
        tempfile.TemporaryDirectory() as name,
        _limit_memory(device, 1.5e9),
        # more memory than there is, so that the plan does not refuse it
        run_node(device, Path(name), memory_limit_gb=1e3) as runtime,
    ):
        config = build_llama(max_position_embeddings=16_384, vocab_size=65_536)
        ref = _save_base(Path(name) / "base", config)
        data = write_rows(Path(name) / "rows", preferences=False)
        small = train(runtime, build_spec("small", BUNDLED, data), data)
        rows = Path(name) / "long.jsonl"
        rows.write_text(2 * (json.dumps({"text": "many words " * 8000}) + "\n"))
        large = build_spec(
            "large", ref, rows, DataFormat.TEXT, sequence_length=16_384, batch_size=2
        )
        ended = train(runtime, large, rows).wait()
        small.wait()
    yield {
        "ok": small.outcome == "finished" and bool(ended.outcome),
        "large": ended.outcome,
        "reason": ended.reason,
    }


def check_device_error(device: torch.device) -> Iterator[dict[str, Any]]:
    """A fault of the device, after which every call fails, is not the job's: the node stops.

    The process is of no use afterwards.
    """
    if device.type != "cuda":
        yield {"ok": True, "skipped": "there is no CUDA device"}
        return
    with tempfile.TemporaryDirectory() as name, run_node(device, Path(name)) as runtime:
        data = write_rows(Path(name) / "rows", preferences=False)
        ending = train(runtime, build_spec("job", BUNDLED, data, epochs=50), data)
        while not ending.losses:
            assert not ending.is_over.wait(0.1), ending.reason
        # a place that is not there: the kernel's own assertion
        torch.zeros(2, device=device).index_select(0, torch.full((1,), 9, device=device))
        ending.wait()
        is_lost = runtime.device_lost.wait(60)
    yield {
        "ok": is_lost and ending.fault is Fault.SYSTEM,
        "device_lost": is_lost,
        "reason": ending.reason,
    }


def _save_base(folder: Path, config: LlamaConfig) -> BaseModelRef:
    """A base with random weights and the bundled one's tokenizer."""
    from transformers import AutoTokenizer

    from workers.models import find_bundled_path

    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(find_bundled_path(BUNDLED.source)).save_pretrained(folder)
    return BaseModelRef(name="random", source=str(folder), dtype="float32")
