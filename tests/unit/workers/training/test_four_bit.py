"""Four-bit bases: NormalFloat as published, products and gradients of the stored weights."""

from __future__ import annotations

import json
import weakref
from dataclasses import replace

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from tests.unit.workers.training_builders import (
    attach,
    completion_rows,
    job_spec,
    save_tiny_base,
    write_jsonl,
)
from workers.protocol.job_spec import BaseModelRef
from workers.runtime.node_runtime import NodeRuntime
from workers.runtime.resident import load_resident
from workers.training import four_bit
from workers.training.faults import UserFault
from workers.training.four_bit import NF4, FourBitLinear, dequantize, quantize


def test_every_value_becomes_the_nearest_of_its_blocks_sixteen():
    torch.manual_seed(3)
    weight = torch.randn(5, 33)
    codes, largest = quantize(weight)
    assert codes.shape == (3, 32)
    assert codes.dtype == torch.uint8
    found = dequantize(codes, largest, torch.float32)[: weight.numel()]
    blocks = torch.cat([weight.reshape(-1), torch.zeros(27)]).view(3, 64)
    levels = blocks.abs().amax(1, keepdim=True)[:, :, None] * torch.tensor(NF4)
    nearest = (blocks[:, :, None] - levels).abs().amin(2)
    error = (blocks.view(-1)[: weight.numel()] - found).abs()
    torch.testing.assert_close(error, nearest.view(-1)[: weight.numel()])


def test_a_block_of_zeros_stays_zero_and_published_codes_are_read():
    codes, largest = quantize(torch.zeros(64))
    assert not dequantize(codes, largest, torch.float32).any()
    # 0x0f holds the least and the largest value, in this order
    read = dequantize(
        torch.full((1, 32), 0x0F, dtype=torch.uint8), torch.tensor([2.0]), torch.float32
    )
    assert read.tolist() == [-2.0, 2.0] * 32


@pytest.mark.parametrize("base", [torch.nn.Linear(64, 48), Conv1D(48, 64)])
def test_products_and_gradients_are_those_of_the_stored_weights(base):
    torch.manual_seed(4)
    torch.nn.init.normal_(base.weight)
    torch.nn.init.normal_(base.bias)
    layer = FourBitLinear(base, device=torch.device("cpu"))
    x = torch.randn(2, 7, 64, requires_grad=True)
    out = layer(x)
    weight = layer.build_weight(torch.float32)
    torch.testing.assert_close(out, x @ weight.T + base.bias)
    out.square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * out.detach() @ weight)
    stored = sum(p.numel() * p.element_size() for p in (layer.codes, layer.largest))
    assert stored == 64 * 48 * 0.5625


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_a_job_on_a_four_bit_base_is_the_job_on_the_weights_it_stores(tmp_path, family):
    whole = save_tiny_base(tmp_path / "base", family)
    data = write_jsonl(tmp_path / "rows.jsonl", completion_rows(12))
    four = BaseModelRef(name="four", source=whole.source, dtype="float32", four_bit=True)
    adapter = {"rank": 2, "dora": True}
    curves = {}
    runtime = NodeRuntime(device="cpu", cache_dir=tmp_path / "four", reproducible=True)
    try:
        sink = attach(runtime, job_spec("job", four, data, adapter=adapter), data)
        sink.wait()
        assert sink.outcome == "finished", sink.reason
        curves["four"] = (sink.adapter_dir / "metrics.csv").read_text()
        resident = runtime.resident(four)
        layers = {
            name: part
            for name, part in resident.model.model.named_modules()
            if isinstance(part, FourBitLinear)
        }
        assert len(layers) == len(resident.model.shape.list_projections())
        # the same values, stored whole
        plain = AutoModelForCausalLM.from_pretrained(whole.source)
        for name, part in layers.items():
            target = plain.get_submodule(name.removesuffix(".base"))
            weight = part.build_weight(torch.float32)
            target.weight.data = weight.T if family == "gpt2" else weight
        plain.save_pretrained(whole.source)
        assert json.loads((sink.adapter_dir / "adapter_config.json").read_text())["use_dora"]
        assert PeftModel.from_pretrained(plain, sink.adapter_dir)
    finally:
        runtime.close()
    runtime = NodeRuntime(device="cpu", cache_dir=tmp_path / "whole", reproducible=True)
    try:
        sink = attach(runtime, job_spec("job", whole, data, adapter=adapter), data)
        sink.wait()
        losses = [
            [float(row.split(",")[2]) for row in text.splitlines()[1:] if row.split(",")[2]]
            for text in (curves["four"], (sink.adapter_dir / "metrics.csv").read_text())
        ]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    finally:
        runtime.close()


def write_as_bitsandbytes(folder, *, nested):
    """A base's files, its projections rewritten in NF4 as bitsandbytes does; the codes by name."""
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
    }
    (folder / "config.json").write_text(json.dumps(config))
    stored = load_file(folder / "model.safetensors")
    codes = {}
    for name in [name for name in stored if name.endswith("_proj.weight")]:
        weight = stored[name]
        blocks, largest = quantize(weight)
        state = {"quant_type": "nf4", "blocksize": 64, "shape": list(weight.shape)}
        if nested:
            levels = torch.linspace(-1.0, 1.0, 256)
            stored[f"{name}.nested_quant_map"] = levels
            stored[f"{name}.nested_absmax"] = torch.tensor([0.3, 0.7])[: len(largest) // 256 + 1]
            state |= {"nested_blocksize": 256, "nested_offset": 1.5}
            eight = (torch.arange(len(largest)) % 256).to(torch.uint8)
            scales = stored[f"{name}.nested_absmax"].repeat_interleave(256)[: len(largest)]
            stored[f"{name}.absmax"] = eight
            largest = levels[eight.long()] * scales + 1.5
        else:
            stored[f"{name}.absmax"] = largest
        stored[name] = blocks.reshape(-1, 1)
        stored[f"{name}.quant_map"] = torch.tensor(NF4)
        text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        stored[f"{name}.quant_state.bitsandbytes__nf4"] = text
        codes[name.removesuffix(".weight")] = blocks, largest
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return codes


def list_four_bit(resident):
    parts = resident.model.model.named_modules()
    return {name: part for name, part in parts if isinstance(part, FourBitLinear)}


@pytest.mark.parametrize(("nested", "dtype"), [(False, "float32"), (True, "bfloat16")])
def test_a_checkpoint_of_bitsandbytes_is_read_code_for_code(tmp_path, nested, dtype):
    base = save_tiny_base(tmp_path / "base", "llama")
    codes = write_as_bitsandbytes(tmp_path / "base", nested=nested)
    ref = BaseModelRef(name="ready", source=base.source, dtype=dtype, four_bit=True)
    resident = load_resident(ref, device=torch.device("cpu"), limit_gb=4.0)
    found = list_four_bit(resident)
    assert found.keys() == codes.keys()
    for name, (blocks, largest) in codes.items():
        assert torch.equal(found[name].codes, blocks)
        assert torch.equal(found[name].largest, largest)
    assert resident.model.dtype == getattr(torch, dtype)
    assert {p.dtype for n, p in resident.model.model.named_parameters() if "norm" in n} == {
        getattr(torch, dtype)
    }
    with pytest.raises(UserFault, match="are in four bits"):
        load_resident(replace(ref, four_bit=False), device=torch.device("cpu"), limit_gb=4.0)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_base_is_quantised_as_it_is_read_and_one_matrix_is_whole_at_a_time(
    tmp_path, family, monkeypatch
):
    base = save_tiny_base(tmp_path / "base", family)
    whole, alive = [], []

    def watch(weight):
        alive.append(sum(one() is not None for one in whole))
        whole.append(weakref.ref(weight.untyped_storage()))
        return quantize(weight)

    monkeypatch.setattr(four_bit, "quantize", watch)
    ref = replace(base, four_bit=True)
    resident = load_resident(ref, device=torch.device("cpu"), limit_gb=4.0)
    found = list_four_bit(resident)
    assert alive == [0] * len(found)
    plain = AutoModelForCausalLM.from_pretrained(base.source)
    for name, part in found.items():
        weight = plain.get_submodule(name).weight
        assert torch.equal(part.codes, quantize(weight.T if family == "gpt2" else weight)[0])
        bias = plain.get_submodule(name).bias
        assert (bias is None) == (part.bias is None)
        assert bias is None or torch.equal(bias, part.bias)
