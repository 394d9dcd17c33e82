"""Checks of whole jobs in the runtime: their end, their resume, their memory and its end."""

from __future__ import annotations

import json
import math
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from workers.bench.product_checks import build_llama, compute_nll
from workers.models import BUNDLED_PREFIX, DATASETS, TINY
from workers.protocol.blobs import hash_file
from workers.protocol.job_bytes import JobNeed
from workers.protocol.job_spec import (
    AdapterSpec,
    BaseModelRef,
    BlobRef,
    DataFormat,
    JobSpec,
    TrainingSpec,
)
from workers.protocol.memory import PackSizing, sum_total_gb
from workers.protocol.pass_bytes import DeviceProfile
from workers.protocol.reports import Fault, ProgressEvent
from workers.runtime.job_sink import JobSummary
from workers.runtime.node_runtime import NodeRuntime
from workers.training.packed_model import PackedModel
from workers.training.rehearsal import build_rehearsal_pack

_BUNDLED = BaseModelRef(name=TINY, source=f"{BUNDLED_PREFIX}{TINY}", dtype="float32")
_DATA = DATASETS / "support_tone.jsonl"
_LONG_TOKENS = 32_768


@dataclass
class _Ending:
    """A sink that keeps losses and waits for the end."""

    losses: dict[int, float] = field(default_factory=dict)
    outcome: str = ""
    reason: str = ""
    checkpoint: Path | None = None
    has_checkpoint: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)
    peak_gb: float = 0.0

    def progress(self, event: ProgressEvent) -> None:
        self.peak_gb = max(self.peak_gb, event.memory_gb or 0.0)
        if event.train_loss is not None:
            self.losses[event.step] = event.train_loss

    def checkpointed(self, path: Path, step: int) -> None:
        self.checkpoint = path
        self.has_checkpoint.set()

    def paused(self, summary: JobSummary) -> None:
        self._end("paused", "", summary)

    def finished(self, adapter_dir: Path, summary: JobSummary) -> None:
        self._end("finished", "", summary)

    def failed(self, fault: Fault, reason: str, summary: JobSummary) -> None:
        self._end("failed", reason, summary)

    def _end(self, outcome: str, reason: str, summary: JobSummary) -> None:
        self.outcome, self.reason = outcome, reason
        if summary.last_train_loss is not None:
            self.losses[summary.step] = summary.last_train_loss
        self.is_over.set()

    def wait(self) -> _Ending:
        assert self.is_over.wait(300), "a job did not end in five minutes"
        return self


def _spec(name: str, ref: BaseModelRef, data: Path, **training: Any) -> JobSpec:
    terms = {"epochs": 1, "batch_size": 8, "learning_rate": 1e-3, "sequence_length": 256}
    return JobSpec(
        job_id=name,
        base_model=ref,
        data_format=DataFormat.TEXT if data != _DATA else DataFormat.CHAT,
        dataset=BlobRef(url="", sha256=hash_file(data), bytes=data.stat().st_size),
        adapter=AdapterSpec(rank=8, alpha=16.0),
        training=TrainingSpec(**(terms | training)),
        checkpoint_every_s=1e9,
    )


def _train(runtime: NodeRuntime, spec: JobSpec, data: Path, *checkpoints: Path) -> _Ending:
    ending = _Ending()
    runtime.attach(
        job=spec, data_path=data, validation_path=None, checkpoint_paths=checkpoints, sink=ending
    )
    return ending


def check_training(device: torch.device) -> Iterator[dict[str, Any]]:
    """A job's last loss on this device against the CPU's, alone and beside others, in four bits."""
    refs = {"float32": _BUNDLED, "four bits": replace(_BUNDLED, four_bit=True)}
    for name, ref in refs.items():
        last = []
        for where in (device, torch.device("cpu")):
            with tempfile.TemporaryDirectory() as folder:
                runtime = NodeRuntime(device=str(where), cache_dir=Path(folder))
                try:
                    spec = _spec("job", ref, _DATA)
                    ending = _train(runtime, spec, _DATA)
                    others = [
                        _train(runtime, _spec(f"other-{seed}", ref, _DATA, seed=seed), _DATA)
                        for seed in (1, 2)
                    ]
                    endings = [one.wait() for one in (ending, *others)]
                finally:
                    runtime.close()
            assert all(one.outcome == "finished" for one in endings), endings[0].reason
            last.append(ending.losses[max(ending.losses)])
        off = abs(last[0] - last[1]) / last[1]
        yield {"ok": off <= 1e-3, "base": name, "loss": last[0], "off_from_cpu": off}


def check_resume(device: torch.device) -> Iterator[dict[str, Any]]:
    """A job that goes on in another runtime ends with the loss of the uninterrupted one."""
    with tempfile.TemporaryDirectory() as folder:
        spec = _spec("job", _BUNDLED, _DATA, epochs=2)
        build = partial(NodeRuntime, device=str(device), reproducible=True)
        runtime = build(cache_dir=Path(folder) / "whole")
        whole = _train(runtime, spec, _DATA).wait()
        runtime.close()
        runtime = build(cache_dir=Path(folder) / "parts")
        first = _train(runtime, replace(spec, checkpoint_every_s=0.0), _DATA)
        assert first.has_checkpoint.wait(60)
        runtime.detach("job", checkpoint=True)
        first.wait()
        runtime.close()
        assert first.checkpoint is not None
        runtime = build(cache_dir=Path(folder) / "moved")
        second = _train(runtime, spec, _DATA, first.checkpoint).wait()
        runtime.close()
    assert second.outcome == "finished", second.reason
    last = max(whole.losses)
    off = abs(second.losses[last] - whole.losses[last]) / whole.losses[last]
    yield {"ok": off <= 1e-4, "steps": last, "off": off}


def check_memory(device: torch.device) -> Iterator[dict[str, Any]]:
    """Peaks of jobs against what was counted: up to a tenth above, never below."""
    if device.type != "cuda":
        yield {"ok": True, "skipped": "python -m workers.bench memory measures CPUs"}
        return
    config = build_llama(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=8,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=32_000,
    )
    for recompute in (False, True):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        model = PackedModel(
            AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to(device)
        )
        model.checkpoint_layers = recompute
        adapter = AdapterSpec(rank=16)
        values = model.draw_initial_values(adapter, seed=0)
        model.attach("rehearsal", adapter, values)
        pack = build_rehearsal_pack(model, lengths=(1000,) * 8)
        with model.streaming(pack):
            compute_nll(model, pack).mean().backward()
        base_gb = sum(p.numel() * p.element_size() for p in model.model.parameters()) / 1e9
        predicted = sum_total_gb(
            model.shape,
            DeviceProfile("cuda", 2),
            base_gb=base_gb,
            pack=PackSizing(pack.tokens, recompute),
            needs=[JobNeed(adapter)],
        )
        measured = torch.cuda.max_memory_allocated(device) / 1e9
        ratio = predicted / measured
        yield {"ok": 1.0 <= ratio <= 1.1, "recompute": recompute, "ratio": round(ratio, 3)}


def check_long_row(device: torch.device) -> Iterator[dict[str, Any]]:
    """One row of 32,768 tokens, forward and backward, with blocks recomputed."""
    tokens = _LONG_TOKENS if device.type == "cuda" else _LONG_TOKENS // 16
    config = build_llama(max_position_embeddings=tokens)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = PackedModel(AutoModelForCausalLM.from_config(config, dtype=dtype).to(device))
    model.checkpoint_layers = True
    adapter = AdapterSpec(rank=16)
    model.attach("rehearsal", adapter, model.draw_initial_values(adapter, seed=0))
    pack = build_rehearsal_pack(model, lengths=(tokens,))
    with model.streaming(pack):
        nll = compute_nll(model, pack).mean()
        nll.backward()
    loss = nll.item()
    yield {"ok": math.isfinite(loss), "tokens": tokens, "loss": loss}


def check_out_of_memory(device: torch.device) -> Iterator[dict[str, Any]]:
    """A row too long for the device ends its own job, and the one beside it finishes."""
    if device.type != "cuda":
        yield {"ok": True, "skipped": "there is no CUDA device"}
        return
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated(device)
    torch.cuda.set_per_process_memory_fraction((held + 1.5e9) / total, device)
    try:
        with tempfile.TemporaryDirectory() as folder:
            config = build_llama(max_position_embeddings=16_384, vocab_size=65_536)
            # more memory than there is, so that the plan does not refuse it
            runtime = NodeRuntime(device=str(device), cache_dir=Path(folder), memory_limit_gb=1e3)
            ref = _save_base(Path(folder) / "base", config)
            small = _train(runtime, _spec("small", _BUNDLED, _DATA), _DATA)
            rows = Path(folder) / "long.jsonl"
            rows.write_text(2 * (json.dumps({"text": "many words " * 8000}) + "\n"))
            large = _spec("large", ref, rows, sequence_length=16_384, batch_size=2)
            ended = _train(runtime, large, rows).wait()
            small.wait()
            runtime.close()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    yield {
        "ok": small.outcome == "finished" and bool(ended.outcome),
        "large": ended.outcome,
        "reason": ended.reason,
    }


def _save_base(folder: Path, config: LlamaConfig) -> BaseModelRef:
    """A base with random weights and the bundled one's tokenizer."""
    from transformers import AutoTokenizer

    from workers.models import find_bundled_path

    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(find_bundled_path(_BUNDLED.source)).save_pretrained(folder)
    return BaseModelRef(name="random", source=str(folder), dtype="float32")
