"""The node's runtime: jobs come, train, move and leave; each gives a PEFT adapter."""

from __future__ import annotations

import pytest
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
from workers.runtime.node_runtime import NodeRuntime
from workers.training.faults import SystemFault


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


class _LeavingSink(RecordingSink):
    """Has its job taken off the node as soon as all of its steps are done."""

    def __init__(self, leave) -> None:
        super().__init__()
        self.leave = leave

    def progress(self, event) -> None:
        super().progress(event)
        if event.step == event.total_steps and self.leave is not None:
            leave, self.leave = self.leave, None
            leave()


def test_a_job_that_may_end_does_so_once_its_steps_are_done(runtime, base, tmp_path):
    data = write_jsonl(tmp_path / "a.jsonl", completion_rows(24))
    sink = _LeavingSink(lambda: runtime.detach("a", checkpoint=True, may_end=True))
    attach(runtime, job_spec("a", base, data, training={"epochs": 2}), data, sink=sink)
    summary = sink.wait()
    assert sink.outcome == "finished", sink.reason
    assert summary.step == summary.total_steps == 12
    assert summary.valid_loss_after == sink.events[-1].valid_loss
    assert runtime.jobs() == ()


def test_a_job_with_steps_left_leaves_though_it_may_end(runtime, base, tmp_path):
    data = write_jsonl(tmp_path / "a.jsonl", completion_rows(40))
    sink = attach(runtime, job_spec("a", base, data, training={"epochs": 200}), data)
    runtime.detach("a", checkpoint=True, may_end=True)
    summary = sink.wait()
    assert sink.outcome == "paused"
    assert summary.step < summary.total_steps
    assert sink.checkpoints[-1][1] == summary.step


def test_a_job_that_is_left_to_end_makes_room_for_one_that_begins(base, tmp_path):
    data = write_jsonl(tmp_path / "a.jsonl", completion_rows(40))
    runtime = NodeRuntime(device="cpu", cache_dir=tmp_path / "cache", memory_limit_gb=0.062)
    large = {"rank": 256, "alpha": 1.0}
    try:
        spec = job_spec("a", base, data, adapter=large, training={"epochs": 200})
        leaving = attach(runtime, spec, data)
        spec = job_spec("b", base, data, adapter=large, training={"epochs": 1})
        with pytest.raises(SystemFault, match="does not fit"):
            attach(runtime, spec, data)
        # As if its last step were done.
        runtime._commands.call(lambda: runtime._leaving.add("a"))
        came = attach(runtime, spec, data)
        assert leaving.wait().step == leaving.checkpoints[-1][1]
        assert leaving.outcome == "paused"
        assert came.wait().step == 9
        assert came.outcome == "finished"
    finally:
        runtime.close()
