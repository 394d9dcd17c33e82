"""Adapters beside experts are PEFT's ``target_parameters``, by the files that owners get."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch
import torch.nn.functional as F
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from tests.unit.workers.runtime.test_forward_check import build_stock
from tests.unit.workers.training.test_adapter_kinds import draw_values
from tests.unit.workers.training_builders import (
    attach,
    byte_tokenizer,
    completion_rows,
    job_spec,
    random_examples,
    write_jsonl,
)
from workers.protocol.adapter_check import WEIGHTS_NAME, check_weights
from workers.protocol.adapter_files import CONFIG_NAME, build_peft_config, write_adapter_zip
from workers.protocol.adapter_names import list_peft_names
from workers.protocol.job_bytes import JobNeed, count_inner_bytes, count_state_bytes
from workers.protocol.job_spec import AdapterSpec, BaseModelRef
from workers.protocol.model_shape import check_shape
from workers.protocol.pass_bytes import DeviceProfile
from workers.runtime.forward_check import choose_model
from workers.runtime.node_runtime import NodeRuntime
from workers.training.adapter_export import to_peft_layout
from workers.training.faults import UserFault
from workers.training.packing import PackShare, build_pack
from workers.training.rehearsal import build_rehearsal_pack
from workers.training.saved_bytes import SavedBytes
from workers.training.start_values import load_start_values

CPU = DeviceProfile("cpu", 4)
#: Packed with two tensors of a block; and by its own code, with biases and turned weights.
FAMILIES = {
    "qwen2_moe": ("q_proj", "gate_up_proj", "down_proj"),
    "glm4_moe": ("experts.down_proj",),
    "nemotron_h": ("experts.up_proj", "experts.down_proj"),
    "granitemoehybrid": ("q_proj", "experts.gate_up_proj", "experts.down_proj"),
    "gpt_oss": ("experts.gate_up_proj", "experts.down_proj"),
}


@pytest.fixture(params=FAMILIES)
def model(request):
    return choose_model(request.param, build_stock(request.param))


@pytest.fixture
def adapter(model):
    targets = FAMILIES[model.shape.model_type]
    return AdapterSpec(rank=3, alpha=6.0, target_modules=targets)


def write_adapter(model, adapter, values, folder):
    """Write what PEFT reads, and give its tensors."""
    names = list_peft_names((name, value.ndim) for name, value in values.items())
    tensors = {names[name]: to_peft_layout(name, value) for name, value in values.items()}
    save_file(tensors, folder / "adapter_model.safetensors")
    config = build_peft_config(
        base_model=BaseModelRef("base", ""),
        shape=model.shape,
        adapter=adapter,
        target_modules=model.name_targets(adapter),
        target_parameters=model.list_experts(adapter),
    )
    (folder / CONFIG_NAME).write_text(json.dumps(config))
    return tensors


def test_losses_and_gradients_are_pefts_beside_neighbours(model, adapter, tmp_path):
    kind = model.shape.model_type
    values = draw_values(model, adapter)
    tensors = write_adapter(model, adapter, values, tmp_path)
    more = ("experts.down_proj",) if model.is_packed else None
    other = AdapterSpec(rank=5, alpha=2.0, target_modules=more)
    for name, spec in (("first", other), ("job", adapter), ("last", AdapterSpec(rank=2))):
        model.attach(name, spec, values if name == "job" else draw_values(model, spec))
    rows = random_examples(4, seed=5)
    shares = [PackShare("job", rows[1:3], 0, 0)]
    if model.is_packed:
        shares = [PackShare("first", rows[:1], 0, 0), *shares, PackShare("last", rows[3:], 0, 0)]
    pack = build_pack(shares, device=model.device, pad_to=16)
    with model.streaming(pack):
        nll_M = model.compute_nll(
            model.hidden(pack).index_select(0, pack.predict_M), pack.targets_M
        )
        nll_M.sum().backward()
    first = 1 if model.is_packed else 0
    own_M = nll_M[(pack.sequence_M >= first) & (pack.sequence_M < first + 2)]

    stock = PeftModel.from_pretrained(build_stock(kind), tmp_path, is_trainable=True).eval()
    losses = []
    for example in rows[1:3]:
        [sequence] = example.sequences
        tokens_T = torch.from_numpy(sequence.tokens)
        logits_TV = stock(input_ids=tokens_T[None]).logits[0]
        nll = F.cross_entropy(logits_TV[:-1], tokens_T[1:], reduction="none")
        losses.append(nll[torch.from_numpy(sequence.weights[1:] > 0)])
    torch.cat(losses).sum().backward()
    torch.testing.assert_close(own_M, torch.cat(losses), rtol=1e-4, atol=1e-5)
    theirs = {
        name.replace(".default.weight", ".weight"): parameter.grad
        for name, parameter in stock.named_parameters()
        if parameter.requires_grad
    }
    assert theirs.keys() == tensors.keys()
    names = list_peft_names((name, value.ndim) for name, value in values.items())
    for name, _, gradient in model.tensors("job"):
        wanted = theirs[names[name]]
        assert wanted.any()
        torch.testing.assert_close(to_peft_layout(name, gradient), wanted, rtol=1e-3, atol=1e-4)


def test_what_a_job_holds_and_its_pack_keeps_is_counted(model):
    layers = [part.name for part in model.shape.list_projections()]
    experts = [part.name for part in model.shape.list_experts()]
    pack, kept = build_rehearsal_pack(model, lengths=(64,)), []
    for names in (layers, [*layers, *experts]):
        spec = AdapterSpec(rank=16, target_modules=tuple(names))
        model.attach("rehearsal", spec, model.draw_initial_values(spec, seed=1))
        tensors = [values for _, values, _ in model.tensors("rehearsal")]
        with model.streaming(pack), SavedBytes(model.model) as saved:
            model.hidden(pack)
        kept.append(saved.total / pack.tokens)
        model.detach("rehearsal")
    held = sum(4 * values.nbytes for values in tensors) + max(2 * v.nbytes for v in tensors)
    sold = count_state_bytes(model.shape, CPU, JobNeed(spec))
    assert held <= sold <= 1.02 * held
    alone = JobNeed(AdapterSpec(rank=16, target_modules=tuple(experts)))
    counted = count_inner_bytes(model.shape, CPU, alone, recompute=False)
    assert kept[1] - kept[0] <= counted <= 2 * (kept[1] - kept[0])


@pytest.mark.parametrize(
    ("family", "changes", "sentence"),
    [
        ("qwen2_moe", {"dora": True}, r"PEFT has no dora; give adapter\.dora false\."),
        ("qwen2_moe", {"dropout": 0.1}, r"PEFT has no dropout; give adapter\.dropout 0\."),
        ("llama4_text", {}, r"experts of this mixture stay frozen: transformers computes them"),
    ],
)
def test_what_peft_has_not_beside_experts_is_refused(family, changes, sentence):
    model = choose_model(family, build_stock(family))
    adapter = AdapterSpec(target_modules=("q_proj", "experts.gate_up_proj"), **changes)
    with pytest.raises(UserFault, match=sentence):
        model.list_shapes(adapter)


def test_all_linear_layers_are_no_experts_and_the_shape_travels():
    shape = choose_model("qwen2_moe", build_stock("qwen2_moe")).shape
    assert check_shape(json.loads(json.dumps(asdict(shape)))) == shape
    assert [(part.name, part.experts, part.chosen) for part in shape.experts] == [
        ("mlp.experts.gate_up_proj", 4, 2),
        ("mlp.experts.down_proj", 4, 2),
    ]
    assert not {part.name for part in shape.list_experts()} & {
        part.name for part in shape.list_projections()
    }


def test_a_job_on_experts_ends_as_a_file_that_peft_loads_and_the_next_job_starts_from(tmp_path):
    build_stock("qwen2_moe").save_pretrained(tmp_path / "base")
    byte_tokenizer().save_pretrained(tmp_path / "base")
    base = BaseModelRef(name="tiny-moe", source=str(tmp_path / "base"), dtype="float32")
    data = write_jsonl(tmp_path / "rows.jsonl", completion_rows(8))
    targets = {"target_modules": ("v_proj", "experts.gate_up_proj", "experts.down_proj")}
    spec = job_spec("job", base, data, adapter=targets)
    runtime = NodeRuntime(device="cpu", cache_dir=tmp_path, reproducible=True)
    try:
        sink = attach(runtime, spec, data)
        sink.wait()
        assert sink.outcome == "finished", sink.reason
        model = runtime.resident(base).model
        weights = (sink.adapter_dir / WEIGHTS_NAME).read_bytes()
        with (sink.adapter_dir / WEIGHTS_NAME).open("rb") as file:
            check_weights(file, size=len(weights), shape=model.shape, adapter=spec.adapter)
        archive = tmp_path / "adapter.zip"
        with archive.open("wb") as file:
            write_adapter_zip(file, texts={}, weights=[weights])
        values = load_start_values(archive, shapes=model.list_shapes(spec.adapter), scale=1.0)
        model.attach("rehearsal", spec.adapter, values)
        pack = build_rehearsal_pack(model, lengths=(20,))
        with torch.no_grad(), model.streaming(pack):
            ours = model.compute_logits(model.hidden(pack))
        stock = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(base.source), sink.adapter_dir
        ).eval()
        with torch.no_grad():
            theirs = stock(input_ids=pack.tokens_T[None]).logits[0]
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    finally:
        runtime.close()
