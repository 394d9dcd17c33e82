"""A base is computed in packs only where those have the losses of the model's own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.unit.workers.training_builders import tiny_model
from workers.bench.models import HEADS, SIZES, TYPES, WINDOWS, build_small, list_lines
from workers.protocol.job_spec import AdapterSpec
from workers.protocol.pass_bytes import (
    DeviceProfile,
    count_inner_token_bytes,
    count_kept_bytes,
    size_pass,
)
from workers.runtime.forward_check import choose_model, measure_difference
from workers.training.adapter_export import to_peft_layout
from workers.training.faults import UserFault
from workers.training.packed_model import PackedModel
from workers.training.rehearsal import build_rehearsal_pack, rehearsal
from workers.training.saved_bytes import SavedBytes
from workers.training.stock_model import StockModel

ROOT = Path(__file__).parents[4]
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "ministral": HEADS | WINDOWS,
    "qwen2": {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1},
    "qwen3": HEADS,
    "qwen3_moe": HEADS | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "mixtral": {"num_local_experts": 4},
    "olmo2": {},
    "olmo3": WINDOWS,
    "gemma": HEADS,
    "gemma3_text": HEADS | WINDOWS | {"query_pre_attn_scalar": 8},
    "phi": {},
    "phi3": {},
    "glm4": HEADS,
    "starcoder2": {"sliding_window": 8},
    "gpt_neox": {},
    "exaone4": WINDOWS,
    "seed_oss": HEADS,
    # logits are scaled
    "granite": {"logits_scaling": 4.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5},
    "cohere": {"logit_scale": 0.25},
    "cohere2": WINDOWS | {"logit_scale": 0.25},
    "helium": HEADS,
}
#: Families that their own code trains.
STOCK: dict[str, dict[str, Any]] = {
    "gemma2": HEADS | WINDOWS | {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0},
    "gpt_oss": HEADS | WINDOWS | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "stablelm": {},
    "nemotron": {},
}


def build_stock(family: str) -> Any:
    if family in TYPES:
        return build_small(family)
    config = CONFIG_MAPPING[family](**(SIZES | (FAMILIES | STOCK)[family]))
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, values in model.named_parameters():
        if "sinks" in name:
            torch.nn.init.normal_(values)
    return model


def build(family: str) -> PackedModel:
    return choose_model(family, build_stock(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_packs_have_the_losses_of_the_models_own_code_beyond_windows_too(family):
    model = build(family)
    assert measure_difference(model) < 1e-5
    with rehearsal(model, tokens=64) as pack:
        with model.streaming(pack), SavedBytes(model.model) as saved:
            model.hidden(pack)
        counted = saved.total / pack.tokens
    profile = DeviceProfile("cpu", 4)
    predicted = count_kept_bytes(model.shape, profile, recompute=False)
    predicted += count_inner_token_bytes(model.shape, profile, rank=8, recompute=False)
    # Masks of windows and rotary angles, which weigh much in so small a model, are not in the sum.
    assert 0.88 < predicted / counted < 1.15


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", STOCK)
def test_what_a_bases_own_code_keeps_is_counted_by_the_length_of_its_rows(family, dtype):
    model = StockModel(build_stock(family).to(dtype))
    profile = DeviceProfile("cpu", dtype.itemsize)
    adapter = AdapterSpec(rank=8)
    model.attach("rehearsal", adapter, model.draw_initial_values(adapter, seed=1))
    predicted, counted = [], []
    for lengths in ((96,), (48, 48)):
        pack = build_rehearsal_pack(model, lengths=lengths)
        with model.streaming(pack), SavedBytes(model.model) as saved:
            model.hidden(pack)
        counted.append(saved.total / pack.tokens)
        sizes = size_pass(
            model.shape, profile, rank=8, recompute=False, longest=lengths[0], padding=1.0
        )
        predicted.append(sizes.kept)
        # Nemotron's blocks have no gate, for which the sum has room.
        assert 1.0 <= predicted[-1] / counted[-1] < (1.3 if family == "nemotron" else 1.12)
    # Masks, which have no heads, are not in the sum.
    slope = (predicted[0] - predicted[1]) / (counted[0] - counted[1])
    assert 0.95 < slope < 1.0


@pytest.mark.parametrize("family", [*FAMILIES, *STOCK, *TYPES])
def test_losses_and_gradients_of_adapters_are_pefts(family):
    model = build(family)
    if family not in TYPES:
        assert isinstance(model, StockModel) is (family in STOCK)
    adapter = AdapterSpec(rank=4, alpha=8.0)
    values = model.draw_initial_values(adapter, seed=1)
    generator = torch.Generator().manual_seed(2)
    for name in values:
        if name.endswith("lora_B"):
            values[name] = 0.05 * torch.randn(values[name].shape, generator=generator)
    model.attach("rehearsal", adapter, values)
    pack = build_rehearsal_pack(model, lengths=(9, 4, 13))
    with model.streaming(pack):
        nll_M = model.compute_nll(
            model.hidden(pack).index_select(0, pack.predict_M), pack.targets_M
        )
        nll_M.sum().backward()

    peft_model: Any = get_peft_model(
        build_stock(family),
        LoraConfig(r=4, lora_alpha=8, target_modules=model.name_targets(adapter)),
    )
    peft_model.eval().set_attn_implementation("eager")
    theirs = {
        name.removesuffix(".default.weight"): values
        for name, values in peft_model.named_parameters()
    }
    for name, value in values.items():
        theirs[f"base_model.model.{name}"].data = to_peft_layout(name, value)
    losses = []
    for row_T in pack.tokens_T.split((9, 4, 13)):
        logits_TV = peft_model(input_ids=row_T[None], use_cache=False).logits[0]
        losses.append(F.cross_entropy(logits_TV[:-1], row_T[1:], reduction="none"))
    torch.cat(losses).sum().backward()
    torch.testing.assert_close(nll_M, torch.cat(losses), rtol=1e-5, atol=1e-5)
    for name, _, gradient in model.tensors("rehearsal"):
        wanted = theirs[f"base_model.model.{name}"].grad
        torch.testing.assert_close(to_peft_layout(name, gradient), wanted, rtol=2e-4, atol=2e-5)


def test_a_head_that_computes_otherwise_is_the_models_own():
    model = tiny_model("llama")
    head = model.get_output_embeddings()
    head.register_forward_hook(lambda module, given, logits: 30 * torch.tanh(2 * logits / 30))
    chosen = choose_model("tiny", model)
    assert not isinstance(chosen, StockModel)
    assert chosen.own_head is not None
    assert measure_difference(chosen) < 1e-5


def test_blocks_that_compute_otherwise_run_by_their_own_code():
    """An attention that packs do not have: every token looks back over its whole row."""
    model = tiny_model("llama")
    for block in model.model.layers:
        block.self_attn.register_forward_hook(
            lambda module, given, found: (found[0].cumsum(1), *found[1:])
        )
    chosen = choose_model("tiny", model)
    assert isinstance(chosen, StockModel)
    assert chosen.shape.stock
    assert measure_difference(chosen) < 1e-5


def test_a_base_whose_rows_meet_in_its_own_code_is_refused_with_the_figure():
    model = tiny_model("llama")
    for block in model.model.layers:
        block.register_forward_hook(
            lambda module, given, found: found - found.mean((0, 1), keepdim=True)
        )
    with pytest.raises(UserFault, match=r"'tiny' \(type llama\) cannot be trained here: .* nats"):
        choose_model("tiny", model)


@pytest.mark.parametrize(
    "changed", [{"partial_rotary_factor": 0.4}, {"num_key_value_heads": 3}], ids=["rotary", "heads"]
)
def test_a_base_whose_own_code_fails_is_refused_with_a_sentence(changed):
    config = CONFIG_MAPPING["stablelm"](**SIZES | changed)
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(
        UserFault, match=r"'mine' \(type stablelm\) cannot be trained here: its own"
    ):
        choose_model("mine", model)


@pytest.mark.parametrize("family", ["gemma3n_text", "gemma4_text"])
def test_embeddings_that_blocks_have_of_their_own_come_with_given_ones(family):
    assert measure_difference(StockModel(build_stock(family))) < 1e-5


def test_the_page_of_models_is_what_trying_them_gives():
    page = (ROOT / "docs" / "guides" / "models.md").read_text()
    assert page.endswith("\n\n" + "\n".join(list_lines()) + "\n")
    packed, own = (", ".join(f"`{kind}`" for kind in sorted(kinds)) for kinds in (FAMILIES, STOCK))
    assert f"Packed are also {packed}; by their own code {own}." in page
