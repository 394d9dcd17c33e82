"""The fallback: what a base's own code trains, one job a pass, is what packs would have trained."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tests.unit.workers.training_builders import (
    admit,
    attach,
    byte_tokenizer,
    completion_rows,
    job_spec,
    random_examples,
    run_steps,
    save_tiny_base,
    tiny_model,
    trainer,
    training_job,
    write_jsonl,
)
from workers.protocol.generation import Question
from workers.protocol.job_spec import AdapterKind
from workers.runtime.node_runtime import NodeRuntime
from workers.training.packed_model import PackedModel
from workers.training.rehearsal import build_rehearsal_pack
from workers.training.stock_model import StockModel

STEPS = 6


def build_jobs():
    soft = {"kind": AdapterKind.SOFT_PROMPT, "virtual_tokens": 3}
    return [
        training_job("dropping", random_examples(20, seed=1), adapter={"dropout": 0.3}),
        training_job("wide", random_examples(20, seed=2), adapter={"rank": 7}),
        training_job("soft", random_examples(20, seed=3), adapter=soft),
    ]


def curves(way, *, recompute=False, token_budget=4096):
    fused = trainer(tiny_model("llama"), way=way, token_budget=token_budget)
    fused.model.checkpoint_layers = recompute
    for job in build_jobs():
        admit(fused, job)
    return run_steps(fused, STEPS)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_job_has_the_same_curve_whichever_way_its_base_is_computed(recompute):
    packed = curves(PackedModel)
    stock = curves(StockModel, recompute=recompute, token_budget=60)
    for name, losses in packed.items():
        assert stock[name] == pytest.approx(losses, rel=1e-5)


def test_jobs_take_turns_and_share_no_pass():
    fused = trainer(tiny_model("gemma2"), way=StockModel, token_budget=64)
    for job in build_jobs():
        admit(fused, job)
    served = []
    for _ in range(9):
        fused.round()
        served.append(max(fused._last_served, key=lambda name: fused._last_served[name]))
    assert served == ["dropping", "wide", "soft"] * 3


def test_a_job_begun_in_packs_goes_on_in_the_models_own_code():
    """A node with another release of a library may find that packs do not agree."""
    whole = curves(PackedModel)
    first = trainer(tiny_model("llama"))
    for job in build_jobs():
        admit(first, job)
    run_steps(first, 3)
    second = trainer(tiny_model("llama"), way=StockModel)
    for name in list(first.jobs):
        values = {tensor: kept.clone() for tensor, kept, _ in first.model.tensors(name)}
        second.add(first.remove(name), values)
    later = run_steps(second, STEPS - 3)
    for name, losses in whole.items():
        assert later[name] == pytest.approx(losses[3:], rel=1e-5)


def test_a_node_trains_pauses_goes_on_and_answers_with_a_base_that_only_its_own_code_computes(
    tmp_path,
):
    base = save_tiny_base(tmp_path / "base", "gemma2")
    data = write_jsonl(tmp_path / "rows.jsonl", completion_rows(24))
    training = {"epochs": 4, "eval_every_steps": 5, "early_stopping": 50}
    spec = job_spec("job", base, data, training=training, checkpoint_every_s=0.0)
    runtime = NodeRuntime(device="cpu", cache_dir=tmp_path / "whole", reproducible=True)
    try:
        sink = attach(runtime, spec, data)
        summary = sink.wait()
        assert sink.outcome == "finished", sink.reason
        assert any("by their own code" in line for event in sink.events for line in event.log)
        assert summary.valid_loss_after < summary.valid_loss_before
        assert len(summary.samples) == 2
        folder = sink.adapter_dir
        whole = (folder / "adapter_model.safetensors").read_bytes()
        model = AutoModelForCausalLM.from_pretrained(base.source).eval()
        prompt = "Q1: what"
        told = []
        runtime.answer(
            Question("q", time.time() + 60, base, prompt=prompt, max_tokens=8), None, told.append
        )
        while not told or not told[-1].finish:
            runtime._commands.call(lambda: None)
        tokens = byte_tokenizer()(prompt, return_tensors="pt").input_ids
        wanted = model.generate(tokens, max_new_tokens=8, do_sample=False)[0, tokens.shape[1] :]
        assert "".join(part.text for part in told) == byte_tokenizer().decode(
            wanted, skip_special_tokens=True
        )
    finally:
        runtime.close()
    assert PeftModel.from_pretrained(model, folder)

    resumed = NodeRuntime(device="cpu", cache_dir=tmp_path / "moved", reproducible=True)
    try:
        paused = attach(resumed, spec, data)
        assert paused.on_checkpoint.wait(30)
        resumed.detach("job", checkpoint=True)
        paused.wait()
        path, step = paused.checkpoints[-1]
        assert 0 < step < summary.step
        sink = attach(resumed, replace(spec, checkpoint_every_s=60.0), data, path)
        sink.wait()
        assert (sink.adapter_dir / "adapter_model.safetensors").read_bytes() == whole
    finally:
        resumed.close()


def test_padding_reaches_no_row_of_a_bucket():
    model = StockModel(tiny_model("gemma2"))
    pack = build_rehearsal_pack(model, lengths=(20, 17))
    with torch.no_grad(), model.streaming(pack, adapters=False):
        both = model.hidden(pack)
    alone = build_rehearsal_pack(model, lengths=(17,))
    alone = replace(alone, tokens_T=pack.tokens_T[20:])
    with torch.no_grad(), model.streaming(alone, adapters=False):
        torch.testing.assert_close(both[20:], model.hidden(alone), rtol=1e-5, atol=1e-5)
