"""A model's shape is read off its modules, with weights and without."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests import market_builders as market
from workers.bench.models import build_small
from workers.models import BUNDLED_PREFIX, TINY, find_bundled_path
from workers.protocol.model_shape import check_shape
from workers.runtime.shape_command import main
from workers.training.architectures import build_on_meta, name_targets, read_shape
from workers.training.faults import UserFault
from workers.training.kept_bytes import describe_model, measure_kept_share

LLAMA = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": 512,
    "num_attention_heads": 4,
}


def test_the_shape_is_the_same_with_weights_and_without():
    config = LlamaConfig(**LLAMA)
    shape = read_shape(build_on_meta(config))
    assert shape == market.SHAPE
    assert read_shape(AutoModelForCausalLM.from_config(config)) == shape
    assert check_shape(json.loads(json.dumps(asdict(shape)))) == shape


def test_the_bundled_models_shape_is_what_the_command_prints(capsys):
    directory = find_bundled_path(f"{BUNDLED_PREFIX}{TINY}")
    assert main([str(directory)]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((directory / "shape.json").read_text())


def test_a_configuration_that_no_modules_can_be_made_from_is_refused_with_the_reason():
    config = CONFIG_MAPPING["nemotron"](num_key_value_heads=None)
    with pytest.raises(UserFault, match=r"type 'nemotron' cannot be made .* unsupported operand"):
        build_on_meta(config)


def test_every_expert_is_counted_and_none_is_adapted():
    config = CONFIG_MAPPING["mixtral"](num_hidden_layers=1, vocab_size=32000)
    shape = read_shape(build_on_meta(config))
    assert [part.name for part in shape.parts] == [
        f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")
    ]
    # two of eight experts a token
    assert shape.intermediate_size == 2 * 14336
    tables, router, norms = 2 * 32000 * 4096, 8 * 4096, 3 * 4096
    assert shape.other_weights == 8 * 3 * 4096 * 14336 + tables + router + norms


def test_blocks_of_several_kinds_have_projections_of_their_own():
    config = CONFIG_MAPPING["qwen3_next"](num_hidden_layers=4)
    shape = read_shape(build_on_meta(config))
    blocks = {part.name: part.blocks for part in shape.parts}
    assert blocks["linear_attn.out_proj"] == (0, 1, 2)
    assert blocks["self_attn.q_proj"] == (3,)
    assert shape.stock
    names = [part.name for part in shape.list_projections()]
    assert names[0].startswith("model.layers.0.linear_attn.")
    assert len(names) == len(set(names)) == sum(len(part.blocks) for part in shape.parts)


def test_a_text_tower_is_adapted_and_the_rest_is_not():
    config = CONFIG_MAPPING["gemma3"](
        text_config=LLAMA | {"head_dim": 16, "num_key_value_heads": 4},
        vision_config={"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2},
    )
    model = build_on_meta(config)
    shape = read_shape(model)
    assert shape.block == "model.language_model.layers.{}"
    names = tuple(part.name for part in shape.list_projections())
    query = "language_model.layers.0.self_attn.q_proj"
    # A vision tower has a q_proj as well, and no gate_proj.
    assert name_targets(model, (f"model.{query}",)) == (query,)
    assert "gate_proj" in name_targets(model, names)


def test_sizes_may_differ_by_layer():
    config = CONFIG_MAPPING["gemma4_text"](
        **LLAMA | {"head_dim": 16, "num_key_value_heads": 4},
        global_head_dim=32,
        layer_types=["sliding_attention", "full_attention"],
        num_kv_shared_layers=0,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=512,
    )
    shape = read_shape(build_on_meta(config))
    widths = {part.blocks: part.outputs for part in shape.parts if part.name == "self_attn.q_proj"}
    assert widths == {(0,): 64, (1,): 128}
    assert shape.head_size == 32


def test_a_shape_keeps_the_rest_of_its_fields():
    shape = replace(market.SHAPE, stock=True, transposed=True)
    assert check_shape(asdict(shape)) == shape


@pytest.mark.parametrize("kind", ["gemma3n_text", "granitemoehybrid", "mamba2", "qwen2_moe"])
def test_what_a_token_keeps_is_counted_without_memory_as_with_it(kind):
    model = build_small(kind)
    empty = build_on_meta(model.config)
    shape = read_shape(empty)
    assert measure_kept_share(empty, shape) == measure_kept_share(model, shape) > 1.0


def test_what_llama_keeps_is_the_sum_and_state_spaces_keep_several_times_it():
    assert describe_model(LlamaConfig(num_hidden_layers=2)).kept_share == 1.0
    assert describe_model(CONFIG_MAPPING["mamba2"](num_hidden_layers=2)).kept_share > 4


def test_a_model_whose_tokens_cannot_be_counted_is_sold_with_room_to_spare(monkeypatch):
    model = build_on_meta(LlamaConfig(**LLAMA))
    monkeypatch.setattr(model.model.layers[0], "forward", lambda *_, **__: None)
    assert measure_kept_share(model, read_shape(model)) == 10.0
