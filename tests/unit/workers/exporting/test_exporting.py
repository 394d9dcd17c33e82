"""Merged weights and GGUF files compute what the base model computes with the adapter beside it."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import gguf
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from workers.exporting.__main__ import EXIT_UNFIT, export
from workers.exporting.merged_files import write_merged
from workers.exporting.merging import open_merged
from workers.models import BUNDLED_PREFIX, TINY, find_bundled_path
from workers.protocol.export_check import list_export_tensors
from workers.protocol.exports import F16, MERGED, Q8_0, ExportError

BASE = find_bundled_path(f"{BUNDLED_PREFIX}{TINY}")
IDS = torch.tensor([[2, 300, 17, 901, 4, 44, 1200, 6]])


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A zip with an adapter of the bundled base, and the logits of the two together."""
    return tune(BASE, tmp_path_factory.mktemp("tuned"))


def tune(base: Path, folder: Path, **changed) -> tuple[Path, torch.Tensor]:
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_pretrained(base)
    settings = {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "k_proj", "down_proj"]}
    tuned = get_peft_model(model, LoraConfig(**settings | changed))
    for name, values in tuned.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(values, mean=float("magnitude" in name), std=0.05)
    tuned.save_pretrained(folder / "adapter")
    path = folder / "adapter.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in (folder / "adapter").iterdir():
            archive.write(file, file.name)
    return path, compute_logits(tuned)


def compute_logits(model) -> torch.Tensor:
    with torch.inference_mode():
        return model.eval()(IDS).logits


def load_merged(tar: Path, folder: Path):
    with tarfile.open(tar) as archive:
        archive.extractall(folder, filter="data")
    return AutoModelForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize("changed", [{}, {"use_dora": True}, {"use_rslora": True}])
def test_merged_weights_give_the_logits_of_base_and_adapter(tmp_path, changed):
    adapter, expected = tune(BASE, tmp_path, **changed)
    out = tmp_path / "merged.tar"
    export(base=BASE, adapter=adapter, form=MERGED, out=out)
    merged = load_merged(out, tmp_path / "merged")
    assert torch.allclose(compute_logits(merged), expected, atol=1e-4)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged")("ab").input_ids


def test_large_weights_are_written_in_shards(tuned, tmp_path):
    adapter, expected = tuned
    with zipfile.ZipFile(adapter) as archive:
        archive.extractall(tmp_path / "adapter")
    out = tmp_path / "merged.tar"
    with open_merged(base=BASE, adapter=tmp_path / "adapter") as weights:
        write_merged(
            weights, base=BASE, adapter=tmp_path / "adapter", out=out, shard_bytes=4_000_000
        )
    merged = load_merged(out, tmp_path / "merged")
    index = json.loads((tmp_path / "merged" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) == 4
    assert torch.allclose(compute_logits(merged), expected, atol=1e-4)


def test_equal_weights_make_equal_files_that_the_market_takes(tuned, tmp_path):
    for form in (MERGED, F16, Q8_0):
        files = [tmp_path / f"{form}-{number}" for number in range(2)]
        for path in files:
            export(base=BASE, adapter=tuned[0], form=form, out=path)
        assert files[0].read_bytes() == files[1].read_bytes()
        with files[0].open("rb") as file:
            assert list_export_tensors(file, form=form)


@pytest.mark.parametrize(("form", "furthest"), [(F16, 2e-2), (Q8_0, 0.5)])
def test_gguf_files_are_read_back_with_the_logits_of_base_and_adapter(
    tuned, tmp_path, form, furthest
):
    adapter, expected = tuned
    out = tmp_path / "model.gguf"
    export(base=BASE, adapter=adapter, form=form, out=out)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=out.name)
    found = compute_logits(model)
    assert (found - expected).abs().max() < furthest
    assert torch.equal(found.argmax(-1), expected.argmax(-1))
    reader = gguf.GGUFReader(out)
    tokens = reader.fields["tokenizer.ggml.tokens"]
    assert tokens.contents(1) == "<|end|>"
    assert len(tokens.data) == 3072
    assert reader.fields["tokenizer.ggml.pre"].contents() == "smollm"
    assert reader.fields["tokenizer.ggml.eos_token_id"].contents() == 1
    assert "<|assistant|>" in reader.fields["tokenizer.chat_template"].contents()


def test_a_qwen_is_written_and_read_back(tmp_path):
    base = tmp_path / "base"
    torch.manual_seed(1)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=3072,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=128,
            tie_word_embeddings=False,
        )
    )
    model.save_pretrained(base)
    AutoTokenizer.from_pretrained(BASE).save_pretrained(base)
    adapter, expected = tune(base, tmp_path)
    out = tmp_path / "model.gguf"
    export(base=base, adapter=adapter, form=F16, out=out)
    read = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=out.name)
    assert (compute_logits(read) - expected).abs().max() < 5e-3


def test_other_families_and_tokenizers_are_refused_by_name(tuned, tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    for path in BASE.iterdir():
        (base / path.name).write_bytes(path.read_bytes())
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"model_type": "gpt_neox"}))
    out = tmp_path / "out"
    with pytest.raises(ExportError, match="this is gpt_neox"):
        export(base=base, adapter=tuned[0], form=F16, out=out)
    (base / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((base / "tokenizer.json").read_text())
    tokenizer["pre_tokenizer"] = {"type": "Whitespace"}
    (base / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ExportError, match="splits text in a way"):
        export(base=base, adapter=tuned[0], form=F16, out=out)
    (base / "config.json").write_text(json.dumps(config | {"quantization_config": {}}))
    with pytest.raises(ExportError, match="quantised"):
        export(base=base, adapter=tuned[0], form=MERGED, out=out)


def test_the_command_says_why_an_adapter_cannot_be_merged(tuned, tmp_path):
    adapter = tmp_path / "prompt.zip"
    with zipfile.ZipFile(adapter, "w") as archive:
        archive.writestr("adapter_config.json", '{"peft_type": "PROMPT_TUNING"}')
    out = tmp_path / "out"
    ended = subprocess.run(
        [sys.executable, "-m", "workers.exporting", "--base", BASE, "--adapter", adapter]
        + ["--form", MERGED, "--out", out],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == EXIT_UNFIT
    assert "Only a LoRA" in ended.stderr
    assert not out.exists()
