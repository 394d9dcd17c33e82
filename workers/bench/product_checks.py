"""Checks of passes: families, attention, grouped products, four-bit projections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from workers.protocol.job_spec import AdapterSpec
from workers.runtime.forward_check import choose_model
from workers.training import attention
from workers.training.adapter_products import is_grouped_usable
from workers.training.architectures import quantize_projections
from workers.training.multi_lora import Form
from workers.training.packed_model import PackedModel
from workers.training.packing import Pack
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
    for dtype, most in TOLERANCES.items():
        for form in forms:
            losses, gradients = _compare(family, FAMILIES[family], dtype, form, device)
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
        nll_M = compute_nll(model, pack)
        nll_M.mean().backward()
    gradients = [gradient.clone() for _, _, gradient in model.tensors("rehearsal")]
    return [nll_M.detach(), *gradients]


def compute_nll(model: PackedModel, pack: Pack) -> torch.Tensor:
    hidden_MD = model.hidden(pack).index_select(0, pack.predict_M)
    return model.compute_nll(hidden_MD, pack.targets_M)


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of the difference, relative to the norm."""
    return float((found - expected).float().norm() / expected.float().norm().clamp(min=1e-12))


def check_attention(device: torch.device) -> Iterator[dict[str, Any]]:
    """Whether the kernel for ragged packs is used, by the width of a head."""
    for width in (64, 128):
        config = build_llama(head_dim=width)
        model = PackedModel(
            AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to(device)
        )
        pack = build_rehearsal_pack(model, lengths=_LENGTHS)
        with torch.no_grad(), model.streaming(pack):
            compute_nll(model, pack)
        refused = [shape for shape in attention.list_refused() if shape[0] == width]
        yield {"ok": not refused, "head": width, "is_used": device.type == "cuda" and not refused}


def check_grouped(device: torch.device) -> Iterator[dict[str, Any]]:
    """Whether grouped products can be used; where not, adapters go one by one."""
    usable = device.type == "cuda" and is_grouped_usable(device)
    yield {"ok": True, "is_used": usable}


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
        most = TOLERANCES[dtype]
        ok = losses <= most[0] and gradients <= most[1]
        yield {"ok": ok, "dtype": str(dtype), "products_off": losses, "gradients_off": gradients}
