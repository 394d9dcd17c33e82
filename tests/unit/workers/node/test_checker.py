"""A node trains steps of another's job again: the same losses come out; forged ones disagree."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.unit.workers.training_builders import (
    attach,
    completion_rows,
    job_spec,
    save_tiny_base,
    write_jsonl,
)
from workers.node.blob_cache import BlobCache
from workers.node.checker import Checker
from workers.node.market_client import MarketClient
from workers.protocol.checks import CheckSpec, losses_agree
from workers.protocol.job_spec import BaseModelRef, CheckpointRef
from workers.protocol.wire import to_json
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
    """A job that ran for a while: its settings, its losses by step, and a checkpoint of it."""
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
    return spec, losses, CheckpointRef(market.blob(path.read_bytes()), step)


@pytest.fixture
def checker(market, runtime, tmp_path):
    client = MarketClient(market.url, token="node-token")
    (tmp_path / "cache").mkdir()
    cache = BlobCache(tmp_path / "cache", client)
    checker = Checker(runtime=runtime, cache=cache, client=client, work=tmp_path / "work")
    yield checker
    checker.close()
    client.close()


def check(trained, *, resumes: bool, **changes) -> CheckSpec:
    spec, _, checkpoint = trained
    start = checkpoint.step if resumes else 0
    fields = {
        "token": f"check-{start}",
        "expires_at": time.time() + 60,
        "job": replace(spec, job_id="chk-1"),
        "until_step": start + 6,
        "resume_from": checkpoint if resumes else None,
    }
    return CheckSpec(**(fields | changes))


@pytest.mark.parametrize("resumes", [False, True])
def test_steps_that_are_trained_again_have_the_losses_they_had(
    market, runtime, checker, trained, resumes
):
    _, claimed, checkpoint = trained
    asked = check(trained, resumes=resumes)
    checker.take(to_json(asked) | {"surprise": 1})
    checker.take(to_json(asked))
    market.wait_until(lambda: market.check_results)
    (result,) = market.check_results
    start = checkpoint.step if resumes else 0
    assert result.reason == ""
    assert [row.step for row in result.losses] == list(range(start + 1, start + 7))
    found = {row.step: row.loss for row in result.losses}
    assert found == pytest.approx({step: claimed[step] for step in found}, rel=1e-3)
    assert losses_agree(claimed, found) is True
    assert losses_agree({step: loss * 0.8 - 0.1 for step, loss in claimed.items()}, found) is False
    assert runtime.jobs() == ()


def test_a_check_that_cannot_be_done_is_answered_with_the_reason(market, checker, trained):
    spec, _, _ = trained
    broken = replace(spec, job_id="chk-1", dataset=replace(spec.dataset, url="/blobs/gone"))
    checker.take({"token": "no check"})
    checker.take(to_json(check(trained, resumes=False, token="over", expires_at=1.0)))
    checker.take(to_json(check(trained, resumes=False, job=broken)))
    market.wait_until(lambda: market.check_results)
    (result,) = market.check_results
    assert (result.token, result.losses) == ("check-0", ())
    assert result.reason
