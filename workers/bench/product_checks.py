"""Checks of passes: families, attention, grouped products, four-bit projections."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from workers.protocol.job_spec import AdapterSpec
from workers.runtime.forward_check import choose_model
from workers.training import attention
from workers.training.adapter_products import (
    compute_dense_delta,
    compute_grouped_delta,
    is_grouped_usable,
)
from workers.training.architectures import quantize_projections
from workers.training.multi_lora import Form
from workers.training.packed_model import PackedModel
from workers.training.packing import Pack
from workers.training.rehearsal import build_rehearsal_pack
from workers.training.stack_table import OwnerTable, Run, RunTable
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
FAMILIES: dict[str, dict[str, Any]] = {
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
    "granite": {"logits_scaling": 4.0, "attention_multiplier": 0.125, "residual_multiplier": 0.5},
    "cohere2": _WINDOWS | {"logit_scale": 0.25},
    "gemma2": _HEADS | _WINDOWS,
    "gpt_oss": _HEADS | _WINDOWS | _EXPERTS,
}
_LENGTHS = (61, 7, 40, 130)
HEAD_WIDTHS = (64, 128, 256)
Check = Callable[[torch.device], Iterator[dict[str, Any]]]


def build_llama(**changes: Any) -> LlamaConfig:
    settings: dict[str, Any] = _SIZES | changes
    return LlamaConfig(**settings)


def check_families(device: torch.device) -> Iterator[dict[str, Any]]:
    """Losses and gradients of packs against the model's own code, by type and form."""
    for family in FAMILIES:
        yield from check_family(family, device)


def check_family(family: str, device: torch.device) -> Iterator[dict[str, Any]]:
    """The lines of one family."""
    forms: tuple[Form, ...] = ("segments", "dense", "grouped")
    for dtype in TOLERANCES:
        for form in forms:
            losses, gradients = _compare(family, FAMILIES[family], dtype, form, device)
            yield {
                "ok": _is_close(losses, gradients, dtype),
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
    """Losses, and the gradients of one adapter of two, which is on all but the first row.

    It sits beside experts as well where there are any, but for 16 bits, which send tokens near a
    tie to other experts.
    """
    experts = model.shape.experts if model.dtype == torch.float32 else ()
    everywhere = tuple(part.name for part in (*model.shape.parts, *experts)) if experts else None
    for job_id, targets in (("neighbour", None), ("rehearsal", everywhere)):
        adapter = AdapterSpec(rank=16, target_modules=targets)
        values = model.draw_initial_values(adapter, seed=1)
        generator = torch.Generator().manual_seed(2)
        for name in sorted(values):
            if name.endswith("lora_B"):
                values[name] = 0.02 * torch.randn(values[name].shape, generator=generator)
        model.attach(job_id, adapter, values)
    pack = build_rehearsal_pack(model, lengths=_LENGTHS)
    if not model.is_packed:
        form = "segments"
    with model.streaming(pack, form=form):
        nll_M = compute_nll(model, pack)
        nll_M.mean().backward()
    gradients = [gradient.clone() for _, _, gradient in model.tensors("rehearsal")]
    return [nll_M.detach(), *gradients]


def compute_nll(model: PackedModel, pack: Pack) -> torch.Tensor:
    hidden_MD = model.hidden(pack).index_select(0, pack.predict_M)
    return model.compute_nll(hidden_MD, pack.targets_M)


def _is_close(losses: float, gradients: float, dtype: torch.dtype) -> bool:
    most_losses, most_gradients = TOLERANCES[dtype]
    return losses <= most_losses and gradients <= most_gradients


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of the difference, relative to the norm."""
    return float((found - expected).float().norm() / expected.float().norm().clamp(min=1e-12))


def check_attention(device: torch.device) -> Iterator[dict[str, Any]]:
    """The kernel for ragged packs, there and back, against the model's own code.

    By the width of a head, and with a window that is shorter than most rows.
    """
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    widths = HEAD_WIDTHS if device.type == "cuda" else HEAD_WIDTHS[:1]
    for width, window in product(widths, (None, 24)):
        settings = {"head_dim": width, "sliding_window": window}
        losses, gradients = _compare("mistral", settings, dtype, "dense", device)
        refused = [shape for shape in attention.list_refused() if shape[0] == width]
        yield {
            "ok": not refused and _is_close(losses, gradients, dtype),
            "head": width,
            "window": window,
            "is_used": device.type == "cuda" and not refused,
            "losses_off": losses,
            "gradients_off": gradients,
        }


def check_grouped(device: torch.device) -> Iterator[dict[str, Any]]:
    """Milliseconds there and back of a layer's adapters, by form, and whether all agree.

    Devices without a kernel for groups compute those one by one and wait for the host each time;
    the engine does not use them there (``is_used``) but multiplies run by run.
    """
    tokens, width, jobs, rank = (8192, 4096, 16, 32) if device.type == "cuda" else (256, 64, 4, 8)
    ends = torch.arange(1, jobs + 1, dtype=torch.int32, device=device) * (tokens // jobs)
    runs = [Run([tokens // jobs], row * rank, rank, (1.0,)) for row in range(jobs)]
    group = Run([tokens // jobs] * jobs, 0, rank, (1.0,) * jobs)
    own_T = torch.arange(tokens, device=device) // (tokens // jobs)
    own_R = torch.arange(jobs * rank, device=device) // rank
    owners = OwnerTable(own_T[:, None] == own_R[None], torch.ones(jobs * rank, device=device))
    forms: dict[str, tuple[Callable[..., torch.Tensor], Any]] = {
        "dense": (compute_dense_delta, owners),
        "run_by_run": (
            compute_grouped_delta,
            RunTable(tuple(runs), ends, (rank,) * jobs, tuple(range(jobs))),
        ),
        "grouped": (compute_grouped_delta, RunTable((group,), ends, (jobs * rank,), (0,))),
    }
    generator = torch.Generator(device).manual_seed(0)
    sizes = ((tokens, width), (jobs * rank, width), (jobs * rank, width))
    x_TD, A_RD, B_RO = (torch.randn(size, generator=generator, device=device) for size in sizes)
    inputs = [x_TD.bfloat16(), A_RD, B_RO]
    for tensor in inputs:
        tensor.requires_grad_()
    found, off = {}, 0.0
    expected: list[torch.Tensor] = []
    for name, (form, table) in forms.items():
        seconds, gradients = _time_form(form, inputs, table, device)
        expected = expected or gradients
        off = max([off, *map(_difference, gradients, expected)])
        found[f"{name}_ms"] = round(1000 * seconds, 3)
    yield {"ok": off <= 0.1, "is_used": is_grouped_usable(device), "off": off, **found}


def _time_form(
    form: Callable[..., torch.Tensor], inputs: list[torch.Tensor], table: Any, device: torch.device
) -> tuple[float, list[torch.Tensor]]:
    """Seconds of the best of several times, and the gradients of the inputs."""
    best, gradients = math.inf, inputs
    for _ in range(10):
        began = time.perf_counter()
        out = form(*inputs, table)
        gradients = list(torch.autograd.grad(out.float().square().mean(), inputs))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return best, gradients


def check_four_bit(device: torch.device) -> Iterator[dict[str, Any]]:
    """Products and gradients of four-bit projections against the matrices that they stand for."""
    for dtype in TOLERANCES:
        model: Any = AutoModelForCausalLM.from_config(build_llama(), dtype=dtype)
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
        yield {
            "ok": _is_close(losses, gradients, dtype),
            "dtype": str(dtype),
            "products_off": losses,
            "gradients_off": gradients,
        }
