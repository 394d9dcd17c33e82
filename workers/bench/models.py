"""``python -m workers.bench models``: which types of models are trained, and how, by trying each.

Each is a few layers of random weights, loaded as a node loads a base.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from workers.protocol.job_spec import AdapterSpec
from workers.runtime.forward_check import choose_model
from workers.training.architectures import find_loader, quantize_projections
from workers.training.loss import compute_preference_losses
from workers.training.objective import compute_sequence_nll
from workers.training.packed_model import PackedModel
from workers.training.rehearsal import build_rehearsal_pack

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 259,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # larger than usual, so that what differs is seen
    "initializer_range": 0.3,
}
WINDOWS = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
HEADS = {"head_dim": 8}
_GEMMA = HEADS | WINDOWS | {"query_pre_attn_scalar": 8}
_PER_LAYER = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 259}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_SHARED = _EXPERTS | {"shared_expert_intermediate_size": 16}
_ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
}
_LINEAR = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"],
}
_EYES = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "v_head_dim": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "first_k_dense_replace": 1,
}
_GRANITE_STATE = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
    "shared_intermediate_size": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "layer_types": ["mamba", "attention"],
}
_NEMOTRON_STATE = {
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 8,
    "n_groups": 1,
    "chunk_size": 16,
    "moe_shared_expert_intermediate_size": 16,
    "num_hidden_layers": 4,
    "layers_block_type": ["mamba", "attention", "moe", "mlp"],
}
#: What differs from ``SIZES`` in a small model of each type; a config of another is nested whole.
TYPES: dict[str, dict[str, Any]] = {
    "apertus": {},
    "arcee": {},
    "deepseek_v3": _ROUTED | _LATENT | {"n_shared_experts": 1},
    "ernie4_5": HEADS,
    "gemma3": {
        "text_config": SIZES | _GEMMA,
        "vision_config": _EYES,
        "mm_tokens_per_image": 4,
        "image_token_index": 5,
        "boi_token_index": 6,
        "eoi_token_index": 7,
    },
    "gemma3n_text": _GEMMA
    | _PER_LAYER
    | {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "laurel_rank": 4,
        "layer_types": 2 * WINDOWS["layer_types"],
        "intermediate_size": [64] * 4,
        "altup_num_inputs": 2,
        "altup_active_idx": 0,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "gemma4_text": _GEMMA | _PER_LAYER | {"num_kv_shared_layers": 0, "global_head_dim": 16},
    "glm": HEADS,
    "glm4_moe": HEADS | _ROUTED | {"first_k_dense_replace": 1},
    "granitemoehybrid": _GRANITE_STATE,
    "hunyuan_v1_dense": HEADS,
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_multiple_of": 8},
    "llama4_text": HEADS
    | {
        "intermediate_size_mlp": 64,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 64,
    },
    "mamba2": {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 16},
    "ministral3": HEADS,
    "mistral3": {
        "text_config": {"model_type": "mistral"} | SIZES | HEADS,
        "vision_config": {"model_type": "pixtral"} | _EYES,
        "image_token_index": 10,
    },
    "nemotron_h": HEADS | _ROUTED | _NEMOTRON_STATE,
    "olmo": {},
    "qwen2_moe": _SHARED,
    "qwen3_5": {
        "text_config": SIZES | HEADS | _LINEAR,
        "vision_config": {"depth": 1, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 32},
    },
    "qwen3_next": HEADS | _LINEAR | _SHARED,
    "smollm3": {"no_rope_layers": [1, 0]},
}


def build_small(kind: str) -> Any:
    """A model of random weights, with few layers."""
    more = TYPES[kind]
    config = CONFIG_MAPPING[kind](**(deepcopy(more) if "text_config" in more else SIZES | more))
    torch.manual_seed(0)
    return find_loader(config).from_config(config, dtype=torch.float32).eval()


@dataclass(frozen=True, slots=True)
class TypeFacts:
    """How models of a type are trained."""

    kind: str
    is_packed: bool
    #: Endings of the names of what adapters sit on.
    targets: tuple[str, ...]
    has_experts: bool
    takes_experts: bool
    takes_four_bits: bool
    takes_preferences: bool


def try_type(kind: str) -> TypeFacts:
    """Train nothing, but compute each way once."""
    model = choose_model(kind, build_small(kind))
    quantised = build_small(kind)
    quantize_projections(quantised, device=torch.device("cpu"))
    return TypeFacts(
        kind=kind,
        is_packed=model.is_packed,
        targets=tuple(sorted({part.name.rpartition(".")[2] for part in model.shape.parts})),
        has_experts=any(".experts." in name for name, _ in model.model.named_parameters()),
        takes_experts=_learns_experts(model),
        takes_four_bits=_learns(choose_model(kind, quantised)),
        takes_preferences=_learns(model, prefers=True),
    )


def _learns_experts(model: PackedModel) -> bool:
    names = tuple(part.name for part in model.shape.list_experts())
    return bool(names) and _learns(model, adapter=AdapterSpec(rank=4, target_modules=names))


_USUAL = AdapterSpec(rank=4)


def _learns(model: PackedModel, *, adapter: AdapterSpec = _USUAL, prefers: bool = False) -> bool:
    """Whether a pass gives an adapter gradients, all of them finite.

    Parameters
    ----------
    prefers : bool
        By DPO, from one row being better than the other.
    """
    values = model.draw_initial_values(adapter, seed=1)
    model.attach("rehearsal", adapter, {n: v + 0.01 for n, v in values.items()})
    pack = build_rehearsal_pack(model, lengths=(9, 4))
    with torch.no_grad(), model.streaming(pack, adapters=False):
        bare_S = compute_sequence_nll(model, pack, model.hidden(pack))
    with model.streaming(pack):
        nll_S = compute_sequence_nll(model, pack, model.hidden(pack))
        losses = compute_preference_losses(nll_S, bare_S, 0.1) if prefers else nll_S
        losses.sum().backward()
    gradients = [gradient.clone() for _, _, gradient in model.tensors("rehearsal")]
    model.detach("rehearsal")
    is_finite = all(bool(gradient.isfinite().all()) for gradient in gradients)
    return is_finite and any(bool(gradient.any()) for gradient in gradients)


def _describe_experts(facts: TypeFacts) -> str:
    if not facts.has_experts:
        return "has none"
    return "yes, where named" if facts.takes_experts else "no, frozen"


def list_lines() -> Iterator[str]:
    """The table, as Markdown."""
    yield "| Type | Computed | Adapters sit beside | LoRA on experts | 4 bits | Preferences |"
    yield "|--|--|--|--|--|--|"
    for kind in TYPES:
        facts = try_type(kind)
        cells = (
            f"`{kind}`",
            "packed" if facts.is_packed else "by its own code",
            ", ".join(f"`{name}`" for name in facts.targets),
            _describe_experts(facts),
            "yes" if facts.takes_four_bits else "no",
            "yes" if facts.takes_preferences else "no",
        )
        yield f"| {' | '.join(cells)} |"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.bench models", description=__doc__)
    parser.add_argument("--write", type=Path, help="put the table into this page")
    chosen = parser.parse_args(arguments)
    table = "\n".join(list_lines())
    if chosen.write is None:
        print(table)
        return 0
    head, mark, _ = chosen.write.read_text().partition("| Type |")
    if not mark:
        parser.error(f"{chosen.write} has no table to replace.")
    chosen.write.write_text(f"{head}{table}\n")
    return 0
