"""A damaged base model is refused when it is loaded, with a sentence, not sold."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, BertConfig, CLIPConfig, LlamaConfig, T5Config

from tests.unit.workers.training_builders import byte_tokenizer, save_tiny_base
from workers.models import BUNDLED_PREFIX, TINY
from workers.protocol.base_files import hash_base_files
from workers.protocol.job_spec import BaseModelRef
from workers.protocol.model_shape import find_context_length
from workers.runtime.resident import load_resident
from workers.training.architectures import find_loader
from workers.training.faults import SystemFault, UserFault

Weights = dict[str, torch.Tensor]


def load(ref: BaseModelRef) -> None:
    load_resident(ref, device=torch.device("cpu"), limit_gb=2.0, reproducible=True)


def damage(ref: BaseModelRef, change: Callable[[Weights], Weights]) -> None:
    path = Path(ref.source) / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def refusal(ref: BaseModelRef) -> str:
    with pytest.raises(SystemFault) as caught:
        load(ref)
    assert ref.name in str(caught.value)
    return str(caught.value)


def test_a_whole_base_is_loaded(tmp_path: Path) -> None:
    load(save_tiny_base(tmp_path))


def test_missing_weights_are_named_and_counted(tmp_path: Path) -> None:
    ref = save_tiny_base(tmp_path)
    damage(ref, lambda weights: {k: v for k, v in weights.items() if ".layers.1.mlp." not in k})
    assert refusal(ref) == (
        "The base model 'tiny-llama' lacks 3 weights, model.layers.1.mlp.down_proj.weight first. "
        "Download it again, or name a revision that is whole."
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_the_bases_fault(tmp_path: Path, value: float) -> None:
    ref = save_tiny_base(tmp_path)

    def spoil(weights: Weights) -> Weights:
        weights["model.norm.weight"][3] = value
        return weights

    damage(ref, spoil)
    assert "not finite numbers, in model.norm.weight" in refusal(ref)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    ref = save_tiny_base(tmp_path)
    damage(
        ref,
        lambda weights: weights | {"model.norm.weight": torch.ones(7)},
    )
    assert "has 1 weight of another shape, model.norm.weight first" in refusal(ref)


def test_a_cut_file_is_refused_with_a_sentence(tmp_path: Path) -> None:
    ref = save_tiny_base(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:2000])
    assert "cannot be loaded from" in (said := refusal(ref))
    assert said.endswith("A file of its weights is cut or damaged: download it again.")


def configure(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("changes", [{"rms_norm_eps": "small"}, {"num_attention_heads": 7}])
def test_a_configuration_that_cannot_be_is_refused_with_a_sentence(tmp_path: Path, changes) -> None:
    ref = save_tiny_base(tmp_path)
    configure(tmp_path, **changes)
    assert refusal(ref).endswith(
        "Its config.json cannot be right: download it again, or choose another model."
    )


def test_weights_from_outside_of_the_folder_are_refused(tmp_path: Path) -> None:
    ref = save_tiny_base(tmp_path / "base")
    (tmp_path / "base" / "model.safetensors").rename(tmp_path / "other.safetensors")
    weights = load_file(tmp_path / "other.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "../other.safetensors")}
    (tmp_path / "base" / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "takes weights from outside of its folder, '../other.safetensors'" in refusal(ref)


def test_fewer_blocks_than_the_files_have_are_refused(tmp_path: Path) -> None:
    ref = save_tiny_base(tmp_path)
    configure(tmp_path, num_hidden_layers=1)
    assert refusal(ref) == (
        "The base model 'tiny-llama' has more than the 1 blocks that its config.json says. "
        "Download it again, or name a revision that is whole."
    )


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_a_model_with_code_of_its_own_is_refused_and_nothing_is_asked(
    tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("builtins.input", lambda _="": "y")
    ref = save_tiny_base(tmp_path)
    (tmp_path / "own.py").write_text("raise SystemError('was run')\n")
    path = tmp_path / file
    asks = {
        "config.json": {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}},
        "tokenizer_config.json": {
            "tokenizer_class": "Own",
            "auto_map": {"AutoTokenizer": [None, "own.Tokenizer"]},
        },
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | asks[file]))
    assert "asks to run code of its own, which no node does" in refusal(ref)
    assert "y/N" not in "".join(capfd.readouterr())


def test_a_tokenizer_longer_than_the_embeddings_is_refused(tmp_path: Path) -> None:
    ref = save_tiny_base(tmp_path)
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["[PAD]"])
    tokenizer.save_pretrained(tmp_path)
    assert "a tokenizer with 260 ids, but embeddings for 259 of them only" in refusal(ref)


def test_an_encoder_may_lack_its_head_but_not_its_pooler(tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=259,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    ref = BaseModelRef(name="tiny-bert", source=str(tmp_path), dtype="float32")
    assert "lacks 2 weights, bert.pooler.dense.bias first" in refusal(ref)
    damage(
        ref,
        lambda weights: (
            weights
            | {
                "bert.pooler.dense.weight": torch.zeros(32, 32),
                "bert.pooler.dense.bias": torch.zeros(32),
            }
        ),
    )
    load(ref)


def test_a_base_with_other_files_than_the_zones_is_refused(tmp_path: Path) -> None:
    ref = save_tiny_base(tmp_path)
    pinned = replace(ref, sha256=hash_base_files(tmp_path))
    load(pinned)
    damage(ref, lambda weights: weights | {"model.norm.weight": torch.full((32,), 1.5)})
    load(ref)
    assert "has other files than those that the zone is pinned to" in refusal(pinned)


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (T5Config(), "has an encoder and a decoder"),
        (CLIPConfig(), "does not continue texts"),
        (LlamaConfig(quantization_config={"quant_method": "gptq"}), "has weights in gptq already"),
    ],
    ids=["t5", "clip", "gptq"],
)
def test_what_cannot_be_trained_is_said_to_be_what_it_is(config: Any, what: str) -> None:
    assert find_loader(LlamaConfig(quantization_config={"quant_method": "mxfp4"}))
    with pytest.raises(UserFault, match=what):
        find_loader(config)


def test_rows_are_no_longer_than_a_model_reads_them_one_way() -> None:
    config: dict[str, object] = {"max_position_embeddings": 131_072}
    assert find_context_length(config) == 131_072
    assert find_context_length({"n_positions": 1024}) == 1024
    long: dict[str, object] = {"type": "longrope"}
    original = {"original_max_position_embeddings": 4096}
    assert find_context_length(config | {"rope_scaling": long} | original) == 4096
    assert find_context_length(config | {"rope_parameters": long | original}) == 4096
    yarn: dict[str, object] = {"rope_type": "yarn"}
    assert find_context_length(config | {"rope_parameters": yarn | original}) == 131_072


def test_a_bundled_model_other_than_the_zones_is_refused():
    ref = BaseModelRef(name="tiny", source=f"{BUNDLED_PREFIX}{TINY}", sha256="0" * 64)
    assert "not the one that the zone was opened with" in refusal(ref)


def test_a_models_hash_is_of_its_files_and_nothing_beside_them(tmp_path):
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes(name.encode())
    found = hash_base_files(tmp_path)
    (tmp_path / "README.md").write_text("A card.")
    assert hash_base_files(tmp_path) == found
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    assert hash_base_files(tmp_path) != found
