"""A base is trained only where a pack has the losses of the model's own code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.unit.workers.training_builders import tiny_model
from workers.protocol.memory import DeviceProfile, inner_token_bytes, kept_bytes
from workers.runtime.forward_check import check_forward, measure_difference
from workers.training.faults import UserFault
from workers.training.packed_model import PackedModel
from workers.training.rehearsal import rehearsal
from workers.training.saved_bytes import SavedBytes

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
FAMILIES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 8},
    "ministral": HEADS | WINDOWS,
    "qwen2": {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1},
    "qwen3": HEADS,
    "qwen3_moe": HEADS | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "mixtral": {"num_local_experts": 4},
    "olmo2": {},
    "olmo3": WINDOWS,
    "smollm3": {"no_rope_layers": [1, 0]},
    "gemma": HEADS,
    "gemma3_text": HEADS | WINDOWS | {"query_pre_attn_scalar": 8},
    "phi": {},
    "phi3": {},
    "glm4": HEADS,
    "starcoder2": {"sliding_window": 8},
    "gpt_neox": {},
}


def build(family: str) -> PackedModel:
    config = CONFIG_MAPPING[family](**(SIZES | FAMILIES[family]))
    torch.manual_seed(0)
    return PackedModel(AutoModelForCausalLM.from_config(config, dtype=torch.float32))


@pytest.mark.parametrize("family", FAMILIES)
def test_packs_have_the_losses_of_the_models_own_code_beyond_windows_too(family):
    model = build(family)
    assert measure_difference(model) < 1e-5
    with rehearsal(model, tokens=64) as pack:
        with model.streaming(pack), SavedBytes(model.model) as saved:
            model.hidden(pack)
        counted = saved.total / pack.tokens
    profile = DeviceProfile("cpu", 4)
    predicted = kept_bytes(model.shape, profile, recompute=False)
    predicted += inner_token_bytes(model.shape, profile, rank=8, recompute=False)
    # Masks of windows and rotary angles, which weigh much in so small a model, are not in the sum.
    assert 0.88 < predicted / counted < 1.15


def test_a_base_that_computes_otherwise_is_refused_with_the_figure():
    model = PackedModel(tiny_model("llama"))
    check_forward("tiny", model)
    head = model.model.get_output_embeddings()
    head.register_forward_hook(lambda module, given, logits: 30 * torch.tanh(2 * logits / 30))
    with pytest.raises(UserFault, match=r"'tiny' \(type llama\) cannot be trained here: .* nats"):
        check_forward("tiny", model)
