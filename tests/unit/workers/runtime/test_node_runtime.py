"""The node's runtime: jobs come, train, move and leave; each gives a PEFT adapter."""

from __future__ import annotations

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tests.unit.workers.training_builders import (
    RecordingSink,
    attach,
    byte_tokenizer,
    completion_rows,
    job_spec,
    write_jsonl,
)


def test_two_jobs_finish_together_and_stock_peft_loads_both(runtime, base, tmp_path):
    sinks = {}
    for name, word in (("a", "blue"), ("b", "green")):
        data = write_jsonl(tmp_path / f"{name}.jsonl", completion_rows(24, word=word))
        sinks[name] = RecordingSink()
        spec = job_spec(name, base, data, training={"epochs": 6, "learning_rate": 2e-2})
        attach(runtime, spec, data, sink=sinks[name])
    for sink in sinks.values():
        summary = sink.wait()
        assert sink.outcome == "finished", sink.reason
        assert summary.step == summary.total_steps == 36
        assert summary.valid_loss_after < summary.valid_loss_before
        assert [event.seq for event in sink.events] == list(range(1, len(sink.events) + 1))
        stock = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(base.source), sink.adapter_dir
        )
        ids = byte_tokenizer()("what colour", return_tensors="pt").input_ids
        with torch.no_grad(), stock.disable_adapter():
            bare = stock(ids).logits
        with torch.no_grad():
            assert not torch.allclose(stock(ids).logits, bare)
    assert runtime.jobs() == ()


def test_a_detached_job_goes_on_where_it_stood(runtime, base, tmp_path):
    data = write_jsonl(tmp_path / "a.jsonl", completion_rows(40))
    spec = job_spec("a", base, data, training={"epochs": 30})
    first = RecordingSink()
    attach(runtime, spec, data, sink=first)
    runtime.checkpoint("a")
    assert first.on_checkpoint.wait(60)
    runtime.detach("a", checkpoint=True)
    paused = first.wait()
    assert first.outcome == "paused"
    path, step = first.checkpoints[-1]
    assert step == paused.step
    second = RecordingSink()
    attach(runtime, spec, data, path, sink=second)
    done = second.wait()
    assert second.outcome == "finished", second.reason
    assert second.events[0].step == step
    assert done.step == done.total_steps
    assert done.valid_loss_before == paused.valid_loss_before
