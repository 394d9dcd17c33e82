"""A node trains steps of another's job again: the same losses come out; forged ones disagree."""

from __future__ import annotations

import io
import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.unit.workers.training_builders import (
    attach,
    byte_tokenizer,
    completion_rows,
    job_spec,
    save_tiny_base,
    save_tiny_encoder,
    write_jsonl,
)
from workers.bench.models import build_small
from workers.node.blob_cache import BlobCache
from workers.node.checker import Checker, FaultChecker
from workers.node.errands import ErrandRunner
from workers.node.market_client import MarketClient
from workers.protocol.adapter_files import write_adapter_zip
from workers.protocol.checks import CheckResult, CheckTask, losses_agree, score_agrees
from workers.protocol.errands import CHECK, FAULT, ErrandSpec
from workers.protocol.fault_checks import FaultCheckResult, FaultCheckTask
from workers.protocol.job_spec import (
    AdapterKind,
    BaseModelRef,
    CheckpointRef,
    DataFormat,
    WarmStart,
)
from workers.protocol.reports import Fault
from workers.protocol.weight_sketch import (
    BUCKETS,
    read_adapter_weights,
    read_checkpoint_weights,
    sketch_weights,
    weights_agree,
)
from workers.protocol.wire import from_json, to_json
from workers.runtime.node_runtime import NodeRuntime
from workers.runtime.running_job import metrics_from_table
from workers.training.checkpoint import load_checkpoint


@pytest.fixture
def runtime(tmp_path):
    runtime = NodeRuntime(device="cpu", cache_dir=tmp_path / "work")
    yield runtime
    runtime.close()


@pytest.fixture
def trained(market, runtime, tmp_path):
    """A job that ran for a while: its settings, its losses by step, and two checkpoints of it."""
    save_tiny_base(tmp_path / "base")
    data = write_jsonl(tmp_path / "rows.jsonl", completion_rows(40))
    base = BaseModelRef(name="base", source=str(tmp_path / "base"))
    spec = job_spec("job-1", base, data, training={"epochs": 900, "eval_every_steps": 10_000})
    spec = replace(spec, dataset=market.blob(data.read_bytes()))
    sink = attach(runtime, spec, data)
    runtime.detach("job-1", checkpoint=True)
    sink.wait()
    path, step = sink.checkpoints[-1]
    again = attach(runtime, spec, data, path)
    while not again.events or again.events[-1].step < step + 8:
        time.sleep(0.01)
    runtime.detach("job-1", checkpoint=True)
    again.wait()
    rows = metrics_from_table(load_checkpoint(again.checkpoints[-1][0]).metrics)
    losses = {row.step: row.train_loss for row in rows if row.train_loss is not None}
    start, (end, _) = CheckpointRef(market.blob(path.read_bytes()), step), again.checkpoints[-1]
    return spec, losses, start, end


@pytest.fixture
def checker(market, runtime, tmp_path):
    client = MarketClient(market.url, token="node-token")
    (tmp_path / "cache").mkdir()
    cache = BlobCache(tmp_path / "cache", client)
    tools = {"runtime": runtime, "cache": cache, "client": client, "work": tmp_path / "work"}
    handlers = {CHECK: Checker(**tools), FAULT: FaultChecker(**tools)}
    runner = ErrandRunner(handlers=handlers, client=client)
    yield runner
    runner.close()
    client.close()


def check(trained, *, resumes: bool, token="check", expires_in_s=60.0, **changes):
    spec, _, checkpoint, _ = trained
    start = checkpoint.step if resumes else 0
    fields = {
        "job": replace(spec, job_id="chk-1"),
        "until_step": start + 6,
        "resume_from": checkpoint if resumes else None,
    }
    return errand(CheckTask(**(fields | changes)), token=token, expires_in_s=expires_in_s)


def errand(task: CheckTask | FaultCheckTask, *, token="check", expires_in_s=60.0):
    kind = CHECK if isinstance(task, CheckTask) else FAULT
    return to_json(ErrandSpec(kind, token, time.time() + expires_in_s, to_json(task)))


def wait_for_result(market, kind=CheckResult):
    market.wait_until(lambda: market.errand_results)
    [(token, result)] = market.errand_results.items()
    assert (token, result.reason) == ("check", "")
    return from_json(kind, result.found)


@pytest.mark.parametrize("resumes", [False, True])
def test_steps_that_are_trained_again_have_the_losses_they_had(
    market, runtime, checker, trained, resumes
):
    _, claimed, checkpoint, _ = trained
    asked = check(trained, resumes=resumes)
    checker.take(asked | {"surprise": 1})
    checker.take(asked)
    result = wait_for_result(market)
    start = checkpoint.step if resumes else 0
    assert [row.step for row in result.losses] == list(range(start + 1, start + 7))
    found = {row.step: row.loss for row in result.losses}
    assert found == pytest.approx({step: claimed[step] for step in found}, rel=1e-3)
    assert losses_agree(claimed, found) is True
    assert losses_agree({step: loss * 0.8 - 0.1 for step, loss in claimed.items()}, found) is False
    assert runtime.jobs() == ()


def test_a_check_that_cannot_be_done_is_answered_with_the_reason(market, checker, trained):
    spec, _, _, _ = trained
    broken = replace(spec, job_id="chk-1", dataset=replace(spec.dataset, url="/blobs/gone"))
    checker.take({"token": "no check"})
    checker.take(check(trained, resumes=False, token="over", expires_in_s=-1.0))
    checker.take(check(trained, resumes=False, job=broken))
    market.wait_until(lambda: market.errand_results)
    [(token, result)] = market.errand_results.items()
    assert (token, result.found, result.fault) == ("check", None, Fault.SYSTEM)
    assert result.reason


def sketch_file(path: Path) -> list[float]:
    with path.open("rb") as file:
        weights = read_checkpoint_weights(file, size=path.stat().st_size)
        return sketch_weights(weights, seed="drawn")


@pytest.mark.parametrize("resumes", [False, True])
def test_the_weights_after_the_same_steps_are_those_that_were_stored(
    market, checker, trained, tmp_path, resumes
):
    _, _, checkpoint, end = trained
    stored = load_checkpoint(end)
    asked = check(trained, resumes=resumes, until_step=stored.progress.step, sketch_seed="drawn")
    checker.take(asked)
    result = wait_for_result(market)
    begin = None
    if resumes:
        first = tmp_path / "first"
        first.write_bytes(market.blobs[checkpoint.blob.url])
        begin = sketch_file(first)
    told = {"start": begin, "found": result.sketch}
    assert len(result.sketch) == 2 * BUCKETS
    assert weights_agree(end=sketch_file(end), **told) is True
    # True losses, and other weights beside them: as they began, the other way, noise, nothing.
    untrained = [0.0] * BUCKETS + sketch_file(end)[BUCKETS:]
    begun = untrained if begin is None else begin
    noise = sketch_weights(
        ((name, torch.randn_like(values).numpy()) for name, values in stored.params.items()),
        seed="drawn",
    )
    mirrored = [-value for value in sketch_file(end)]
    for wrong in (begun, noise, mirrored, [0.0] * 2 * BUCKETS, [math.nan] * 2 * BUCKETS):
        assert weights_agree(end=wrong, **told) is False
    # Another seed has other sums: no answer can be prepared, or copied from elsewhere.
    weights = [(name, values.numpy()) for name, values in stored.params.items()]
    assert weights_agree(end=sketch_weights(weights, seed="other"), **told) is False


def pack_adapter(folder: Path) -> bytes:
    out = io.BytesIO()
    weights = (folder / "adapter_model.safetensors").read_bytes()
    write_adapter_zip(out, texts={}, weights=[weights])
    return out.getvalue()


def save_mixture(folder: Path) -> None:
    build_small("qwen2_moe").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


LABELLED = [{"text": f"the film was {word}", "label": word} for word in ("good", "bad") * 10]
ON_EXPERTS = {"target_modules": ("v_proj", "experts.gate_up_proj", "experts.down_proj")}
#: How a base is made, what an adapter of it is, and the rows.
KINDS = {
    "lengths": (save_tiny_base, {"dora": True}, (DataFormat.COMPLETION, completion_rows(20))),
    "experts": (save_mixture, ON_EXPERTS, (DataFormat.COMPLETION, completion_rows(20))),
    "classes": (save_tiny_encoder, {}, (DataFormat.CLASSIFICATION, LABELLED)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_adapter_has_the_sketch_of_the_checkpoint_it_was_made_of(
    runtime, tmp_path, kind
):
    save_base, adapter, (data_format, rows) = KINDS[kind]
    save_base(tmp_path / "base")
    data = write_jsonl(tmp_path / "rows.jsonl", rows)
    base = BaseModelRef(name="base", source=str(tmp_path / "base"))
    spec = job_spec("job-1", base, data, data_format=data_format, adapter=adapter)
    paused = attach(runtime, spec, data, pause_at=3)
    paused.wait()
    assert [step for _, step in paused.checkpoints] == [3]
    total = paused.events[-1].total_steps
    last = attach(runtime, replace(spec, job_id="job-2"), data, pause_at=total)
    last.wait()
    whole = attach(runtime, replace(spec, job_id="job-3"), data)
    whole.wait()
    assert whole.outcome == "finished", whole.reason
    with io.BytesIO(pack_adapter(whole.adapter_dir)) as file:
        found = sketch_weights(read_adapter_weights(file), seed="drawn")
    told = sketch_file(last.checkpoints[-1][0])
    assert found == pytest.approx(told, rel=1e-3, abs=1e-4)
    assert weights_agree(start=None, end=found, found=told) is True


@pytest.mark.parametrize(
    "adapter", [{}, {"kind": AdapterKind.SOFT_PROMPT, "virtual_tokens": 4, "looks_up": True}]
)
def test_a_result_is_measured_on_the_held_out_rows_without_training(
    market, runtime, checker, tmp_path, adapter
):
    save_tiny_base(tmp_path / "base")
    data = write_jsonl(tmp_path / "rows.jsonl", completion_rows(40))
    base = BaseModelRef(name="base", source=str(tmp_path / "base"))
    training = {"epochs": 3, "learning_rate": 0.05, "target_loss": 0.01}
    spec = job_spec("job-1", base, data, training=training)
    spec = replace(
        spec,
        dataset=market.blob(data.read_bytes()),
        adapter=replace(spec.adapter, **adapter),
    )
    ended = attach(runtime, spec, data)
    said = ended.wait()
    assert said.valid_loss_after < said.valid_loss_before - 0.1
    start = WarmStart(adapter=market.blob(pack_adapter(ended.adapter_dir)))
    job = replace(spec, job_id="chk-1", warm_start=start)
    asked = errand(CheckTask(job, until_step=0, scores_start=True))
    checker.take(asked)
    result = wait_for_result(market)
    assert result.losses == ()
    assert result.score == pytest.approx(said.valid_loss_after, rel=1e-3)
    assert score_agrees(said.valid_loss_after, result.score) is True
    assert score_agrees(said.valid_loss_after - 0.3, result.score) is False
    assert runtime.jobs() == ()


@pytest.mark.parametrize("diverges", [False, True])
def test_a_fault_of_the_input_is_found_again_and_only_where_there_is_one(
    market, runtime, checker, trained, tmp_path, diverges
):
    spec, _, checkpoint, _ = trained
    job = replace(spec, job_id="chk-1")
    if diverges:
        # From fresh weights: a checkpoint's run has its settings from its job.
        job = replace(
            job,
            adapter=replace(spec.adapter, alpha=1e30),
            training=replace(spec.training, learning_rate=1.0),
        )
    start = None if diverges else checkpoint
    task = FaultCheckTask(job, (start.step if start else 0) + 6, start)
    checker.take(errand(task))
    found = wait_for_result(market, FaultCheckResult)
    assert ("training diverged" in found.fault) is diverges
    assert bool(found.fault) is diverges
    assert (f"at step {(found.step or 0) + 1}: " in found.fault) is diverges
    assert runtime.jobs() == ()
    assert not (tmp_path / "work" / "chk-1").exists()


def test_a_node_that_cannot_train_the_steps_finds_no_fault_with_the_input(market, checker, trained):
    spec, _, _, _ = trained
    gone = replace(spec, job_id="chk-1", dataset=replace(spec.dataset, url="/blobs/gone"))
    checker.take(errand(FaultCheckTask(gone, until_step=3)))
    market.wait_until(lambda: market.errand_results)
    [(_, result)] = market.errand_results.items()
    assert (result.found, result.fault) == (None, Fault.SYSTEM)
