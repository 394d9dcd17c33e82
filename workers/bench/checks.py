"""``python -m workers.bench check``: whether the engine is right here, a line per check.

Each check stands alone and compares with the plain way or with the CPU. Bases are small, with
random weights, so that no network is needed. ``--only`` names checks; the exit status is 1 where
one fails. On a machine without a GPU the same checks run on the CPU, but for those of its kernels.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

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
from workers.protocol.memory import JobNeed, PackSizing, total_gb
from workers.protocol.pass_bytes import DeviceProfile
from workers.protocol.reports import Fault, ProgressEvent
from workers.runtime.forward_check import choose_model
from workers.runtime.job_sink import JobSummary
from workers.runtime.node_runtime import NodeRuntime
from workers.training import attention
from workers.training.architectures import quantize_projections
from workers.training.graph_runners import CudaGraphRunner
from workers.training.multi_lora import Form, is_grouped_usable
from workers.training.packed_model import PackedModel
from workers.training.packing import Pack
from workers.training.recorded_steps import record_steps_if_faster
from workers.training.rehearsal import build_rehearsal_pack
from workers.training.stock_model import StockModel

#: Largest differences relative to the largest value: losses, gradients.
TOLERANCES = {torch.float32: (1e-4, 1e-3), torch.bfloat16: (3e-2, 1e-1)}
_SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "initializer_range": 0.1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_HEADS = {"head_dim": 64}
_WINDOWS = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
#: One of each kind of attention, block and output layer; what else a family has is its own.
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 16},
    "qwen3": _HEADS,
    "qwen3_moe": _HEADS | {"num_experts": 4, "num_experts_per_tok": 2},
    "mixtral": _EXPERTS,
    "olmo3": _WINDOWS,
    "gemma3_text": _HEADS | _WINDOWS,
    "phi3": {},
    "glm4": _HEADS,
    "gpt_neox": {},
    "granite": {"logits_scaling": 4.0},
    "cohere2": _WINDOWS | {"logit_scale": 0.25},
    "gemma2": _HEADS | _WINDOWS,
    "gpt_oss": _HEADS | _WINDOWS | _EXPERTS,
}
_LENGTHS = (61, 7, 40, 130)
_BUNDLED = BaseModelRef(name=TINY, source=f"{BUNDLED_PREFIX}{TINY}", dtype="float32")
_DATA = DATASETS / "support_tone.jsonl"
_LONG_TOKENS = 32_768

Check = Callable[[torch.device], Iterator[dict[str, Any]]]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.bench check", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default=",".join(CHECKS), help="names, with commas between them")
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.only.split(",") if name not in CHECKS]
    if unknown:
        print(f"There is no check {unknown[0]}; choose {', '.join(CHECKS)}.", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    device = torch.device(chosen.device)
    is_good = True
    for name in chosen.only.split(","):
        for row in run_check(name, device):
            is_good = is_good and row["ok"]
            print(json.dumps(row), flush=True)
    return 0 if is_good else 1


def run_check(name: str, device: torch.device) -> Iterator[dict[str, Any]]:
    """A check's lines; one that raises is one line more, with its error."""
    began = time.monotonic()
    try:
        for row in CHECKS[name](device):
            yield {"check": name, **row, "seconds": round(time.monotonic() - began, 1)}
            began = time.monotonic()
    # the other checks must still run
    except Exception as error:
        logging.exception("check %s", name)
        yield {"check": name, "ok": False, "error": f"{type(error).__name__}: {error}"}


def _build_llama(**changes: Any) -> LlamaConfig:
    settings: dict[str, Any] = _SIZES | changes
    return LlamaConfig(**settings)


def _check_families(device: torch.device) -> Iterator[dict[str, Any]]:
    """Losses and gradients of packs against the model's own code, by type and form."""
    is_cuda = device.type == "cuda"
    forms: tuple[Form, ...] = ("segments", "dense")
    for family, settings in _FAMILIES.items():
        for dtype in TOLERANCES:
            found = forms
            if is_cuda and dtype == torch.bfloat16 and is_grouped_usable(device):
                found = (*forms, "grouped")
            for form in found:
                losses, gradients = _compare(family, settings, dtype, form, device)
                most = TOLERANCES[dtype]
                yield {
                    "ok": losses <= most[0] and gradients <= most[1],
                    "family": family,
                    "dtype": str(dtype).removeprefix("torch."),
                    "form": form,
                    "losses_off": losses,
                    "gradients_off": gradients,
                }


def _compare(
    family: str,
    settings: dict[str, Any],
    dtype: torch.dtype,
    form: Form,
    device: torch.device,
) -> tuple[float, float]:
    def build() -> Any:
        torch.manual_seed(0)
        config = CONFIG_MAPPING[family](**(_SIZES | settings))
        return AutoModelForCausalLM.from_config(config, dtype=dtype).to(device)

    model = choose_model(family, build())
    numbers = [
        _measure(way, form if way is model else "segments") for way in (model, StockModel(build()))
    ]
    pairs = list(zip(*numbers, strict=True))
    return _difference(*pairs[0]), max(_difference(*pair) for pair in pairs[1:])


def _measure(model: PackedModel, form: Form) -> list[torch.Tensor]:
    """Losses, and the gradients of one adapter of two, which is on all but the first row."""
    adapter = AdapterSpec(rank=16)
    values = model.draw_initial_values(adapter, seed=1)
    generator = torch.Generator().manual_seed(2)
    for name in sorted(values):
        if name.endswith("lora_B"):
            values[name] = 0.02 * torch.randn(values[name].shape, generator=generator)
    model.attach("neighbour", adapter, values)
    model.attach("rehearsal", adapter, values)
    pack = build_rehearsal_pack(model, lengths=_LENGTHS)
    if not model.is_packed:
        form = "segments"
    with model.streaming(pack, form=form):
        nll_M = _compute_nll(model, pack)
        nll_M.mean().backward()
    gradients = [gradient.clone() for _, _, gradient in model.tensors("rehearsal")]
    return [nll_M.detach(), *gradients]


def _compute_nll(model: PackedModel, pack: Pack) -> torch.Tensor:
    hidden_MD = model.hidden(pack).index_select(0, pack.predict_M)
    return model.compute_nll(hidden_MD, pack.targets_M)


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of the difference, relative to the norm."""
    return float((found - expected).float().norm() / expected.float().norm().clamp(min=1e-12))


def _check_attention(device: torch.device) -> Iterator[dict[str, Any]]:
    """Whether the kernel for ragged packs is used, by the width of a head."""
    for width in (64, 128):
        config = _build_llama(head_dim=width)
        model = PackedModel(
            AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to(device)
        )
        pack = build_rehearsal_pack(model, lengths=_LENGTHS)
        with torch.no_grad(), model.streaming(pack):
            _compute_nll(model, pack)
        refused = [shape for shape in attention.list_refused() if shape[0] == width]
        yield {"ok": not refused, "head": width, "is_used": device.type == "cuda" and not refused}


def _check_grouped(device: torch.device) -> Iterator[dict[str, Any]]:
    """Whether grouped products can be used; where not, ``dense`` takes their place."""
    usable = device.type == "cuda" and is_grouped_usable(device)
    yield {"ok": True, "is_used": usable}


def _check_recorded(device: torch.device) -> Iterator[dict[str, Any]]:
    """Whether a step can be recorded and gives the plain step's numbers."""
    if device.type != "cuda":
        yield {"ok": True, "skipped": "there is no CUDA device"}
        return
    for dtype in TOLERANCES:
        config = _build_llama()
        model = PackedModel(AutoModelForCausalLM.from_config(config, dtype=dtype).to(device))
        found = record_steps_if_faster(model, CudaGraphRunner(device))
        # the log says why, where it is None: slower, other numbers, or an error
        yield {"ok": True, "dtype": str(dtype), "is_used": found is not None}


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


def _check_training(device: torch.device) -> Iterator[dict[str, Any]]:
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


def _check_resume(device: torch.device) -> Iterator[dict[str, Any]]:
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


def _check_memory(device: torch.device) -> Iterator[dict[str, Any]]:
    """Peaks of jobs against what was counted: up to a tenth above, never below."""
    if device.type != "cuda":
        yield {"ok": True, "skipped": "python -m workers.bench memory measures CPUs"}
        return
    config = _build_llama(
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
            _compute_nll(model, pack).mean().backward()
        base_gb = sum(p.numel() * p.element_size() for p in model.model.parameters()) / 1e9
        predicted = total_gb(
            model.shape,
            DeviceProfile("cuda", 2),
            base_gb=base_gb,
            pack=PackSizing(pack.tokens, recompute),
            needs=[JobNeed(adapter)],
        )
        measured = torch.cuda.max_memory_allocated(device) / 1e9
        ratio = predicted / measured
        yield {"ok": 1.0 <= ratio <= 1.1, "recompute": recompute, "ratio": round(ratio, 3)}


def _check_long_row(device: torch.device) -> Iterator[dict[str, Any]]:
    """One row of 32,768 tokens, forward and backward, with blocks recomputed."""
    tokens = _LONG_TOKENS if device.type == "cuda" else _LONG_TOKENS // 16
    config = _build_llama(max_position_embeddings=tokens)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = PackedModel(AutoModelForCausalLM.from_config(config, dtype=dtype).to(device))
    model.checkpoint_layers = True
    adapter = AdapterSpec(rank=16)
    model.attach("rehearsal", adapter, model.draw_initial_values(adapter, seed=0))
    pack = build_rehearsal_pack(model, lengths=(tokens,))
    with model.streaming(pack):
        nll = _compute_nll(model, pack).mean()
        nll.backward()
    loss = nll.item()
    yield {"ok": math.isfinite(loss), "tokens": tokens, "loss": loss}


def _check_out_of_memory(device: torch.device) -> Iterator[dict[str, Any]]:
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
            config = _build_llama(max_position_embeddings=16_384, vocab_size=65_536)
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


def _check_four_bit(device: torch.device) -> Iterator[dict[str, Any]]:
    """Products and gradients of four-bit projections against the matrices that they stand for."""
    for dtype in TOLERANCES:
        model: Any = AutoModelForCausalLM.from_config(_build_llama(), dtype=dtype)
        quantize_projections(model, device=device)
        layer = model.to(device).model.layers[0].mlp.up_proj
        x = torch.randn(300, 256, device=device, dtype=dtype, requires_grad=True)
        weight = layer.build_weight(dtype)
        out = layer(x)
        out.float().square().sum().backward()
        wanted = (2 * out.detach().float() @ weight.float()).to(dtype)
        losses = _difference(out.detach(), x.detach() @ weight.T)
        assert x.grad is not None
        gradients = _difference(x.grad, wanted)
        most = TOLERANCES[dtype]
        ok = losses <= most[0] and gradients <= most[1]
        yield {"ok": ok, "dtype": str(dtype), "products_off": losses, "gradients_off": gradients}


CHECKS: dict[str, Check] = {
    "attention": _check_attention,
    "grouped": _check_grouped,
    "families": _check_families,
    "four_bit": _check_four_bit,
    "training": _check_training,
    "resume": _check_resume,
    "memory": _check_memory,
    "long_row": _check_long_row,
    "recorded": _check_recorded,
    "out_of_memory": _check_out_of_memory,
}
